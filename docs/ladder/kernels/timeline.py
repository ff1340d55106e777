#!/usr/bin/env python3
"""
timeline.py: what rung 10 has under way. Above, the tensor cores and the exponential units of one multiprocessor while
its two warpgroups go through four tiles; below, after each line of the loop of `products`, the work of the warpgroup
that is under way. Times are arithmetic, not a measurement: 64 queries and 128 keys keep the tensor cores of an H100
busy for 256 clocks in each product (4096 FLOP a clock), and the exponential units for 512 (16 a clock).

    docs/ladder/kernels/timeline.py [--svg docs/images/kernel_timeline.svg]     without it, the table as text
"""
import argparse, os, re

HERE = os.path.dirname(os.path.abspath(__file__))
PRODUCT, SOFTMAX, TILES = 64 * 128 * 64 * 2 // 4096, 64 * 128 // 16, 4  # clocks, clocks; tiles of a warpgroup
COLORS = ("#3b6fb6", "#d9822b")


def simulate():
    """Spans (unit, warpgroup, label, begin, end). A unit takes its work in the order in which it is started."""
    spans, free = [], {"tensor cores": 0, "exponentials": 0}

    def work(unit, group, label, ready, clocks):
        begin = max(free[unit], ready)
        free[unit] = begin + clocks
        spans.append((unit, group, label, begin, free[unit]))
        return free[unit]

    score, softmax = [work("tensor cores", g, "S 0", 0, PRODUCT) for g in range(2)], [0, 0]
    for j in range(TILES):
        for g in range(2):  # in turn: one starts its products when the other has started its own
            if j > 0:
                score[g] = work("tensor cores", g, f"S {j}", softmax[g], PRODUCT)
                work("tensor cores", g, f"P V {j - 1}", softmax[g], PRODUCT)
            softmax[g] = work("exponentials", g, f"softmax {j}", score[g], SOFTMAX)
    for g in range(2):
        work("tensor cores", g, f"P V {TILES - 1}", softmax[g], PRODUCT)
    return spans


def lines_of_loop():
    """(code, under way after it) for each line of the loop in `products` of 10_hopper.cu."""
    with open(os.path.join(HERE, "10_hopper.cu"), encoding="utf-8") as f:
        text = f.read()
    loop = re.search(r"void products\(.*?\n    for [^\n]*\{\n(.*?)\n    \}\n", text, re.S).group(1)
    rows, state = [], {"S": "", "softmax": "", "P V": ""}
    for line in loop.split("\n"):
        code = line.split(" //")[0].strip()
        if code.startswith("start_rows"):
            state["S"] = "in flight"
        if code.startswith("start_columns"):
            state["P V"] = "in flight"
        if code.startswith("warpgroup_wait<1>"):
            state["S"] = "done"
        if code.startswith("softmax_rows"):
            state["softmax"], state["S"] = "beside it", ""
        if code.startswith("warpgroup_wait<0>"):
            state.update({"P V": "done", "softmax": "done"})
        rows.append((code, dict(state)))
    return rows


def draw(path):
    import matplotlib
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "kernel_timeline"
    import matplotlib.pyplot as plt
    rows, units = lines_of_loop(), ["exponentials", "tensor cores"]
    figure, (above, below) = plt.subplots(2, 1, figsize=(10, 7), height_ratios=(1, 2.2))
    for unit, group, label, begin, end in simulate():
        above.barh(units.index(unit), end - begin, left=begin, color=COLORS[group], edgecolor="white")
        above.text((begin + end) / 2, units.index(unit), label, ha="center", va="center", color="white", fontsize=7)
    above.set_yticks(range(2), units)
    above.set_xlabel("clocks, by the units' rates; blue and orange: the two warpgroups of a block")
    for side in ("top", "right"):
        above.spines[side].set_visible(False)
    below.axis("off")
    cells = [[code, *(state[name] for name in ("S", "softmax", "P V"))] for code, state in rows]
    shade = {"in flight": "#cfe0f5", "beside it": "#fbe3cb", "done": "#eeeeee", "": "white"}
    colors = [["white", *(shade[text] for text in row[1:])] for row in cells]
    table = below.table(cells, colors, cellLoc="left", colWidths=[0.46, 0.16, 0.16, 0.16], loc="center",
                        colLabels=["after this line of the loop", "S = Q K, next keys", "softmax", "P V, keys before"])
    table.auto_set_font_size(False)
    table.set_fontsize(8)
    for (row, column), cell in table.get_celld().items():
        if row > 0 and column == 0:
            cell.get_text().set_family("monospace")
        cell.set_edgecolor("#bbbbbb")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="what rung 10 has under way")
    parser.add_argument("--svg", help="the picture")
    options = parser.parse_args()
    if options.svg:
        draw(options.svg)
    else:
        for code, state in lines_of_loop():
            print(f"{code:44}" + "".join(f" {name} {text}" for name, text in state.items() if text))
