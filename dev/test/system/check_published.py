#!/usr/bin/env python3
"""
check_published.py PLAN: the rows of PLAN --published can be repeated. PLAN with a row's options and those of its source
has one answer: the mesh in the row's options, with the printed value by the formulas of the unit's source, written here
once more. The error follows from the two values, and the mean errors from those of the rows.
"""
import collections
import json
import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from checks import check, finish  # pylint: disable=wrong-import-position

PLAN = sys.argv[1]
PEAK = {"selene": 312e12, "dgx-a100": 312e12, "dgx-a100-40": 312e12, "jean-zay": 312e12, "dgx-h100": 989.4e12}
GPT3 = {"1.7B": (24, 2304, 2048, 51200), "3.6B": (30, 3072, 2048, 51200), "7.5B": (36, 4096, 2048, 51200),
        "18.4B": (40, 6144, 2048, 51200), "39.1B": (48, 8192, 2048, 51200), "76.1B": (60, 10240, 2048, 51200),
        "145.6B": (80, 12288, 2048, 51200), "310.1B": (96, 16384, 2048, 51200), "529.6B": (105, 20480, 2048, 51200),
        "1008B": (128, 25600, 2048, 51200)}
Shape = collections.namedtuple("Shape", "llama L C NH NKV F T V")


def plan(*options):
    done = subprocess.run([PLAN, *options], capture_output=True, text=True, check=False)
    check(done.returncode == 0, f"{' '.join(options)}: {done.stderr}")
    return done.stdout


def shape_of(option):
    name = option.get("--model")
    if name == "llama3-405B":
        return Shape(True, 126, 16384, 128, 8, 53248, 8192, 128256)
    if name:
        L, C, T, V = GPT3[name.removeprefix("gpt3-")]
        return Shape(False, L, C, 0, 0, 4 * C, T, V)
    heads = int(option["--heads"])
    return Shape(option["--arch"] == "llama", int(option["--layers"]), int(option["--hidden"]), heads,
                 int(option.get("--kv-heads", heads)), int(option["--ffn"]), int(option["--seq"]),
                 int(option["--vocab"]))


def value(unit, s, batch, gpus, seconds, peak):
    """The source's unit. Equation 3 of Narayanan et al. 2021 counts four passes; the others three, 6 FLOP a token and
    weight of the products, and 12 L C T for attention, or its causal half."""
    rate = batch / seconds / gpus
    groups = s.NKV / s.NH if s.NH else 1
    weights = s.L * (2 * s.C ** 2 * (1 + groups) + (3 if s.llama else 2) * s.C * s.F) + s.V * s.C
    model = {causal: s.T * (6 * weights + (6 if causal else 12) * s.L * s.C * s.T) for causal in (True, False)}
    four = 96 * s.T * s.L * s.C ** 2 * (1 + s.T / (6 * s.C) + s.V / (16 * s.L * s.C))
    return {"s": [seconds], "seq/s": [rate], "k tok/s": [rate * s.T / 1e3], "% MFU": [100 * rate * model[False] / peak],
            "TFLOP/s": [rate * four / 1e12, rate * model[True] / 1e12, rate * model[False] / 1e12]}[unit]


def check_row(row, common):
    """Checks a row; its error of speed, and the half that it is of."""
    match = re.match(r"    (.{46}) +([\d.]+)  published +([\d.]+) (\S.*?) +([+-][\d.]+) %  (\w+) +(--.*)$", row)
    check(match, f"a row: {row}")
    if not match:
        return None
    name, printed, published, unit, error, half, options = match.groups()
    words = common.split() + options.split()
    option = {words[i]: words[i + 1] for i in range(len(words) - 1) if words[i].startswith("--")}
    rows = json.loads(plan(*words, "--json") or "[]")
    check(len(rows) == 1, f"{name}, {options}: {len(rows)} answers")
    if len(rows) != 1:
        return None
    gpus, batch, seconds = int(option["--gpus"]), int(option["--global-batch"]), rows[0]["seconds"]
    values = value(unit, shape_of(option), batch, gpus, seconds, PEAK[option["--cluster"]])
    ours = min(values, key=lambda x: abs(x / float(printed) - 1))
    check(abs(ours / float(printed) - 1) < 6e-4, f"{name}: {printed} is printed, the command's is {ours}, {unit}")
    check(abs(100 * (ours / float(published) - 1) - float(error)) < 0.06 + 0.06 * (unit == "s"),
          f"{name}: {error} % for {ours} beside {published}")
    for key, said in (("tp", "--tp"), ("pp", "--pp"), ("vp", "--vpp"), ("micro_batch", "--micro-batch"),
                      ("zero", "--zero"), ("schedule", "--schedule"), ("recompute", "--recompute")):
        check(str(rows[0][key]) == option[said], f"{name}: {said} {option[said]}, and it is {rows[0][key]}")
    untied = option.get("--vocab") in ("50688", "131072", "256000") and "--arch gpt2" in options  # NeoX, Nemotron, ..
    tied = "yes" if re.match(r"Qwen2\.5 [01]\.5B", name) else "no" if untied else None
    check(option.get("--tie-embeddings") == tied, f"{name}: --tie-embeddings {option.get('--tie-embeddings')}")
    return half, (float(published) / ours if unit == "s" else ours / float(published)) - 1


def main():
    text = plan("--published")
    found, common = collections.defaultdict(list), None
    for row in text.split("\n\n")[0].split("\n"):
        header = re.match(r"\S.* \((?:confirmed|repository|third party|memory)\): ./plan (.*) OPTIONS$", row)
        if header:
            common = header.group(1)
            continue
        result = check_row(row, common)
        if result:
            found[result[0]].append(result[1])
    for half, errors in found.items():
        mean, signed = (100 * sum(x) / len(errors) for x in (map(abs, errors), errors))
        said = re.search(rf"    all +{half} +(\d+) runs, error +([\d.]+) %, signed +([+-][\d.]+) %", text)
        check(said and int(said.group(1)) == len(errors) and abs(float(said.group(2)) - mean) < 0.1 and
              abs(float(said.group(3)) - signed) < 0.1, f"{half}: {len(errors)} rows, {mean:.2f}, {signed:.2f} %")
    check([len(found[half]) for half in ("calibration", "choosing", "judging", "outside")] == [10, 99, 106, 20],
          "the halves are those that were drawn before constants were changed")
    check(sum(map(len, found.values())) == 235, f"{sum(map(len, found.values()))} rows")
    finish()


main()
