#!/usr/bin/env python3
"""
check_figures.py PLAN: the tables and pictures of PLAN --figures.

A row's options are those of the authors' scripts, written down here once more; its value is that of PLAN with these
options, by the formulas of Narayanan et al. 2021; its published value is that of the table here. A picture has a line
through our values and a circle at each published one, by the scale of its axis.
"""
import json
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

PLAN = sys.argv[1]
BATCHES, POWERS = (12, 24, 36, 48, 60), (2, 4, 8, 16, 32)


# Figure: layers, hidden, heads, GPUs, t, p, micro-batch by x; the places of x; lines: batch by x, v, recomputation,
# scatter/gather, published points.
def always(n):
    return lambda x: n


GPT3 = (always(96), 12288, 96, always(96), always(8), always(12), always(1))
SMALL = (always(32), 3840, 32, always(64))
PAPER = {
    11: (lambda x: 3 * x, 20480, 128, lambda x: 8 * x, always(8), lambda x: x, always(1), (1, 2, 4, 8),
         {"batch 128": (always(128), 1, "full", True, {1: 178, 8: 163}),
          "batch 8": (always(8), 1, "full", True, {1: 165, 8: 88})}),
    12: (*GPT3, BATCHES,
         {"interleaved, v 4": (int, 4, "full", True, dict(zip(BATCHES, (119, 134, 141, 143, 146)))),
          "1f1b": (int, 1, "full", True, dict(zip(BATCHES, (82, 109, 122, 130, 135))))}),
    13: (always(32), 20480, 128, always(64), lambda x: 64 // x, int, always(1), POWERS,
         {"batch 128": (always(128), 1, "full", True, {8: 165}),
          "batch 32": (always(32), 1, "full", True, {8: 142})}),
    14: (*SMALL, always(1), int, always(1), POWERS,
         {"batch 512": (always(512), 1, "full", True, {2: 148, 32: 90}),
          "batch 32": (always(32), 1, "full", True, {2: 62, 32: 42})}),
    15: (*SMALL, int, always(1), always(1), POWERS,
         {"batch 512": (always(512), 1, "full", True, {2: 128, 32: 25}),
          "batch 128": (always(128), 1, "full", True, {}), "batch 32": (always(32), 1, "full", True, {})}),
    16: (always(32), 15360, 128, always(64), always(8), always(8), int, (1, 2, 4, 8),
         {"batch 512": (always(512), 1, "full", True, {1: 163, 2: 172, 4: 160, 8: 155}),
          "batch 128": (always(128), 1, "full", True, {1: 155, 2: 158, 4: 140, 8: 120})}),
    17: (always(80), 12288, 96, always(128), always(8), always(16), always(1), tuple(2 ** i for i in range(9)),
         {"recomputed in full": (int, 1, "full", True, {}), "nothing recomputed": (int, 1, "none", True, {})}),
    18: (*GPT3, BATCHES,
         {"scatter/gather": (int, 4, "full", True, dict(zip(BATCHES, (119, 134, 142, 144, 147)))),
          "without": (int, 4, "full", False, dict(zip(BATCHES, (107, 120, 127, 130, 131))))}),
}
failed = passed = 0


def check(what, good):
    global failed, passed
    passed, failed = passed + bool(good), failed + (not good)
    if not good:
        print("FAIL ", what)


def plan(*options):
    return subprocess.run([PLAN, *options], capture_output=True, text=True, check=True).stdout


def expected(figure, line, x):
    layers, _, _, gpus, t, p, size, _, lines = PAPER[figure]
    batch, v, recompute, scatter, published = lines[line]
    options = (f"--layers {layers(x)} --gpus {gpus(x)} --tp {t(x)} --pp {p(x)} --vpp {v} --schedule "
               f"{'interleaved' if v > 1 else '1f1b'} --global-batch {batch(x)} --micro-batch {size(x)} "
               f"--recompute {recompute} --sequence-parallel no{'' if scatter else ' --no-scatter-gather'}")
    return options, published.get(x)


def value(figure, common, options):
    """Equation 3 of the paper, or sequences a second, from the seconds that the command predicts."""
    rows = json.loads(plan(*common.split(), *options.split(), "--json"))
    of = dict(zip(options.split()[::2], options.split()[1::2]))
    L, C, batch = int(of["--layers"]), PAPER[figure][1], int(of["--global-batch"])
    check(f"figure {figure}, {options}: one row", len(rows) == 1)
    if figure == 17:
        return batch / rows[0]["seconds"]
    flops = 96 * batch * 2048 * L * C * C * (1 + 2048 / (6 * C) + 51200 / (16 * L * C))
    return flops / rows[0]["seconds"] / int(of["--gpus"]) / 1e12


def check_table(text):
    """Returns the figure's number, and its lines' values."""
    rows = text.strip().split("\n")
    figure = int(re.match(r"figure (\d+): ", rows[0]).group(1))
    common = re.search(r"a row: ./plan (.*) OPTIONS$", rows[-1]).group(1)
    _, hidden, heads, *_, places, lines = PAPER[figure]
    check(f"figure {figure}: {common}", common == f"--arch gpt2 --hidden {hidden} --heads {heads} --seq 2048 --vocab "
          "51200 --cluster selene --software megatron-2021 --zero 0 --any-memory")
    points = [r for r in rows if " --layers " in r]
    names = [(line, x) for line in lines for x in places]
    check(f"figure {figure}: its points", len(points) == len(names))
    errors, values = [], {line: [] for line in lines}
    for row, (line, x) in zip(points, names):
        match = re.match(rf"    {re.escape(line)} +{x} +([\d.]+) +(\d+|-) +(-|[+-][\d.]+ %)  (--layers .*)$", row)
        check(f"figure {figure}: {line}, {x}: {row}", match)
        if not match:
            continue
        options, published = expected(figure, line, x)
        check(f"figure {figure}: {options}: {row}", match.group(4) == options)
        ours, printed = value(figure, common, options), match.group(1)
        half = 0.5 * 10.0 ** -len(printed.split(".")[1])
        check(f"figure {figure}: {row}: {ours}", abs(ours - float(printed)) <= half + 1e-5 * ours)
        check(f"figure {figure}: {row}: {published}", match.group(2) == str(published or "-"))
        if published:
            errors.append(100 * (ours / published - 1))
            check(f"figure {figure}: {row}: {errors[-1]}", abs(errors[-1] - float(match.group(3)[:-2])) < 0.06)
        values[line].append(ours)
    if errors:
        mean, signed = sum(abs(e) for e in errors) / len(errors), sum(errors) / len(errors)
        said = re.search(r"    (\d+) published points: error ([\d.]+) %, signed ([+-][\d.]+) %\n", text)
        check(f"figure {figure}: the mean of {errors}", said and int(said.group(1)) == len(errors) and
              abs(float(said.group(2)) - mean) < 0.06 and abs(float(said.group(3)) - signed) < 0.06)
    return figure, values


def check_picture(figure, values, path):
    tag = "{http://www.w3.org/2000/svg}"
    root = xml.etree.ElementTree.parse(path).getroot()
    ticks = [(float(t.text), float(t.get("y")) - 4) for t in root.iter(tag + "text") if t.get("text-anchor") == "end"
             and re.fullmatch(r"[\d.]+", t.text)]
    (low, bottom), (high, top) = ticks[0], ticks[-1]
    width, height = float(root.get("width")), float(root.get("height"))

    def read(y):
        return low + (bottom - float(y)) / (bottom - top) * (high - low)

    groups = [g for g in root.iter(tag + "g") if g.get("stroke")]
    check(f"figure {figure}: lines of its picture", len(groups) == len(values) and low == 0)
    for group, (line, ours) in zip(groups, values.items()):
        points = re.findall(r"[ML]([\d.]+) ([\d.]+)", group.find(tag + "path").get("d"))[1:]  # after the key
        check(f"figure {figure}, {line}: {points}", len(points) == len(ours))
        for (x, y), wanted in zip(points, ours):
            check(f"figure {figure}, {line}: {read(y)}, not {wanted}", abs(read(y) - wanted) < 0.005 * high)
            check(f"figure {figure}, {line}: outside", 0 < float(x) < width and top <= float(y) < height)
        published = PAPER[figure][-1][line][-1]
        circles = {c.get("cx"): c.get("cy") for c in group.iter(tag + "circle")}
        wanted = {points[PAPER[figure][-2].index(x)][0]: v for x, v in published.items()}
        check(f"figure {figure}, {line}: {circles}", circles.keys() == wanted.keys() and
              all(abs(read(circles[x]) - v) < 0.005 * high for x, v in wanted.items()))


def main():
    tables = plan("--figures", "all").strip().split("\n\n")
    check("all figures", len(tables) == len(PAPER))
    with tempfile.TemporaryDirectory() as folder:
        for text, wanted in zip(tables, PAPER):
            figure, values = check_table(text)
            path = f"{folder}/{figure}.svg"
            alone = plan("--figures", str(wanted), "--svg", path)
            check(f"figure {wanted}: alone", figure == wanted and alone == text + f"\n\npicture   {path}\n")
            check_picture(figure, values, path)
            if figure == 18:  # a message t times as long takes longer
                check("scatter/gather does not help", all(a > 1.03 * b for a, b in zip(*values.values())))
        plan("--figures", "all", "--svg", f"{folder}/all.svg")
        root = xml.etree.ElementTree.parse(f"{folder}/all.svg").getroot()
        circles = sum(1 for e in root.iter() if e.tag.endswith("circle"))
        published = sum(len(line[-1]) for figure in PAPER.values() for line in figure[-1].values())
        check(f"the picture of all: {circles} circles, not {published}", circles == published)
    print(f"{passed} passed, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
