#!/usr/bin/env python3
"""plot.py: pictures of docs/images, by matplotlib.

    make pictures                                  those of tables, which build/tables, ./plan and others print
    dev/plot/plot.py zb-v plan                     some of them
    dev/plot/plot.py measured OUT TRACE            a step of a pipeline, measured and predicted (measured.py)
    dev/plot/plot.py transport OUT [SEEDS]         collisions by transport (docs/transport.md; some minutes)
"""
import collections, colorsys, itertools, math, os, re, subprocess, sys

import measured
from measured import ROOT, Span, table

try:
    import matplotlib.colors
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch, PathPatch
    from matplotlib.path import Path
except ImportError:  # expected_load needs none
    plt = None

WIDTH, TEXT, GRAY, IDLE = 9.4, "#1f2937", "#57606a", "#e9edf2"  # inches, colours
PLAN, FOUR = "./plan --model gpt3-39.1B --cluster selene --gpus 64 --global-batch 64 --timeline", ("--pp", 4)
COLOURS = ["#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#76b7b2", "#edc948"]
RANKS = ["#2a66b8", "#a9cdf4", "#238b4d", "#a3dcb6", "#b3541e", "#f0bf9b", "#8457bd", "#c9b3e6"]
KINDS = {  # of what is done: the colours of the first chunk and of the last one
    "forward": ("#2a66b8", "#a9cdf4"), "backward": ("#238b4d", "#a3dcb6"),
    "backward input half": ("#238b4d", "#a3dcb6"), "backward weight half": ("#b0cb3f", "#e4eeae"),
    "update": ("#8457bd", "#c9b3e6"), "message": ("#d1605e", "#d1605e"),
    "sums and others": ("#c9a227", "#c9a227")}


def run(command):
    return subprocess.run(command.split(), cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def figure(title, note, height, rows=1, columns=1, **more):
    fig, axes = plt.subplots(rows, columns, figsize=(WIDTH, height), squeeze=False, layout="constrained", **more)
    fig.suptitle(title + "\n" * bool(note), x=0.008, ha="left", fontsize=10.5, fontweight="bold")
    fig.text(0.008, 1 - 0.34 / height, note, va="center", color=GRAY)
    return fig, list(axes.flat)


def save(fig, path, key=(), columns=8):
    """key: pairs of a colour and what it means. Digits that cannot be seen go."""
    if key:
        fig.legend(handles=[Patch(color=c, label=name) for c, name in key], loc="outside lower left", frameon=False,
                   ncols=columns)
    fig.savefig(path, metadata={"Date": None})
    plt.close(fig)
    with open(path, encoding="utf-8") as f:
        text = re.sub(r'(?s)\s*<!--.*?-->|<metadata>.*?</metadata>\s*| id="\w+_\d+"|\n(?=[LzMC"])', "", f.read())
    with open(path, "w", encoding="utf-8") as f:
        f.write(re.sub(r"<[^>]*>", lambda tag: re.sub(r"(?<=\.\d)\d+", "", tag[0]), text))


def shapes(axes, polygons, colour, **style):
    """Polygons of one colour, as one path: a picture of many stays small."""
    vertices = [x for polygon in polygons for x in [*polygon, polygon[0]]]
    codes = [c for polygon in polygons for c in [Path.MOVETO] + [Path.LINETO] * (len(polygon) - 1) + [Path.CLOSEPOLY]]
    if polygons:
        axes.add_patch(PathPatch(Path(vertices, codes), **{"facecolor": colour, "linewidth": 0, **style}))


def box(x, y, width, height):
    return [(x, y), (x + width, y), (x + width, y + height), (x, y + height)]


def mix(dark, light, part):
    return [a + part * (b - a) for a, b in zip(matplotlib.colors.to_rgb(dark), matplotlib.colors.to_rgb(light))]


def ink(colour):
    """The colour of a text on it"""
    return "white" if sum(w * c for w, c in zip((0.3, 0.59, 0.11), matplotlib.colors.to_rgb(colour))) < 0.55 else TEXT


def bare(axes, **limits):
    """Shapes alone, without axes; downwards"""
    axes.set(**limits, aspect="equal")
    axes.axis("off")


# ---- timelines

def timeline(axes, spans, names, length, chunks=1):
    """A row for each name, with boxes (measured.Span). Returns the key."""
    groups = collections.defaultdict(list)
    shapes(axes, [box(0, r - 0.45, length, 0.9) for r in range(len(names))], IDLE)
    for s in spans:
        groups[s.kind if s.kind in KINDS else "sums and others", max(0, s.chunk)].append(s)
    for (kind, chunk), group in groups.items():
        colour = mix(*KINDS[kind], chunk / max(1, chunks - 1))
        height = 0.9 if kind in measured.PASSES else 0.55
        shapes(axes, [box(s.start, s.stage - height / 2, s.end - s.start, height) for s in group], colour,
               linewidth=0.3, edgecolor="white")
        for s in group:
            if s.micro_batch >= 0 and (s.end - s.start) * WIDTH / length > 0.09 + 0.03 * len(f"{s.micro_batch}"):
                axes.text((s.start + s.end) / 2, s.stage, s.micro_batch, color=ink(colour), fontsize=7.5, ha="center",
                          va="center_baseline")
    axes.set(xlim=(0, length), ylim=(len(names) - 0.4, -0.6), yticks=range(len(names)), yticklabels=names)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    return [(KINDS[kind][0], kind) for kind in KINDS if any(kind == k for k, _ in groups)] + [(IDLE, "idle")]


def draw_schedule(path, name):
    text = run(PLAN) if name == "plan" else measured.text_of("schedule", "--schedule", name, *FOUR)
    spans, note = measured.rows_of(text)
    stages, chunks = 1 + max(s.stage for s in spans), 1 + max(s.chunk for s in spans)
    fig, (axes,) = figure(f"{name}: {stages} stages", note, 1.2 + 0.3 * stages)
    key = timeline(axes, spans, [f"stage {r}" for r in range(stages)], max(s.end for s in spans), chunks)
    axes.set_xlabel(f"time{' (s)' * (name == 'plan')}" + "; dark: chunk 0, light: chunk 1" * (chunks > 1))
    save(fig, path, key)


def draw_measured(path, trace):
    """The step that is nearest to the median, and its prediction"""
    about, steps = measured.read(trace)
    step = sorted(steps[1:], key=measured.length_of)[(len(steps) - 1) // 2]
    zero, names = min(begin for begin, _ in step.stages.values()), [f"stage {r}" for r in range(about["p"])]
    ran = [s._replace(start=s.start - zero, end=s.end - zero) for s in step.passes]
    ran += [Span(r, "other", 0, -1, max(s.end for s in ran if s.stage == r), end - zero)
            for r, (_, end) in step.stages.items()]
    spans, length = measured.predict(about, step)
    fig, axes = figure(f"{about['schedule']}, {about['p']} stages, {about['m']} micro-batches: step {step.number}", "",
                       1.3 + 0.75 * about["p"], 2, sharex=True)
    panels = (ran, measured.length_of(step), "measured"), (spans, length, "predicted by the tables from its mean times")
    for ax, (part, took, name) in zip(axes, panels):
        key = timeline(ax, part, names, max(s.end for s in ran + spans), about["v"])
        idle = 100 * measured.bubble(about, part, took)
        ax.set_title(f"{name}: {took:.4g} ms, bubble {idle:.1f} % of the work", loc="left")
    axes[1].set_xlabel("ms; dark: chunk 0, light: the last chunk")
    save(fig, path, key)


def draw_async_plan(path):
    """methods/async_schedule.h: a mode sends in every H-th step, and merges at once or `late` steps later."""
    fig, axes = figure("One replica in three modes, on a network that takes as long as a step", "", 3.9, 3, sharex=True)
    modes = ("sync", 1, 0), ("dc-s3gd, used one step later", 1, 1), ("diloco, every 8 steps", 8, 0)
    for ax, (name, H, late) in zip(axes, modes):
        now, arrives, step, spans = 0, 0, 0, []
        while now + 1 <= 24:
            step += 1
            spans += [Span(0, "forward", 0, -1, now, now + 1 / 3), Span(0, "backward", 0, step, now + 1 / 3, now + 1)]
            now = max(now + 1, arrives if late else 0)
            if step % H == 0:
                arrives = now + 1
                spans.append(Span(1, "message", 0, -1, now, min(24, arrives)))
                now = now if late else arrives
        key = timeline(ax, spans, ["computing", "messages"], 24)
        ax.set_title(f"{name}: {step} steps", loc="left")
    axes[2].set_xlabel("time (steps of computing)")
    save(fig, path, key)


# ---- collectives on grids

class Collective:
    def __init__(self, topology, algorithm):
        rows, self.title = table("collective", "--topology", topology, "--algorithm", algorithm)
        self.rows, self.columns = map(int, topology.split(":")[1].split("x"))
        self.ranks, self.steps = self.rows * self.columns, collections.defaultdict(list)
        for row in rows:
            self.steps[row.step].append(row)
        self.links = {(row.source, row.to): row for row in rows}

    def colour(self, owner):
        return colorsys.hls_to_rgb(owner / self.ranks, 0.5, 0.7) if owner >= 0 else (0.55, 0.58, 0.62)

    def arrow(self, row):
        """Corners of an arrow to the right of a link's line; of a link around the grid there are two, as stubs."""
        (y0, x0), (y1, x1) = divmod(row.source, self.columns), divmod(row.to, self.columns)
        around = abs(x1 - x0) + abs(y1 - y0) > 1
        ux, uy = ((x1 > x0) - (x1 < x0)) * (-1) ** around, ((y1 > y0) - (y1 < y0)) * (-1) ** around
        for x, y, a, b in ((x0, y0, 0.26, 0.62), (x1, y1, -0.62, -0.26)) if around else ((x0, y0, 0.26, 0.74),):
            c = b - 0.16
            corners = (a, 0.07), (c, 0.07), (c, 0.03), (b, 0.09), (c, 0.15), (c, 0.11), (a, 0.11)
            yield [(x + along * ux - across * uy, y + along * uy + across * ux) for along, across in corners]

    def draw(self, axes, groups, colours, numbers, title, margin):
        """groups: triples of rows, their colour, and whether arrows are filled. numbers: the ranks that have one"""
        busy = {(row.source, row.to) for group, _, _ in groups for row in group}
        idle = [row for ends, row in self.links.items() if ends not in busy]
        shapes(axes, [[p[0], p[3]] for row in idle for p in self.arrow(row)], IDLE, edgecolor=IDLE, linewidth=1)
        for group, colour, filled in groups:
            style = {} if filled else {"edgecolor": colour, "linewidth": 0.8}
            shapes(axes, [p for row in group for p in self.arrow(row)], colour if filled else "white", **style)
        places = [(r % self.columns, r // self.columns) for r in range(self.ranks)]
        axes.scatter(*zip(*places), s=120, c=colours, linewidth=0)
        for r in numbers:
            axes.text(*places[r], r, ha="center", va="center_baseline", fontsize=7, color=ink(colours[r]))
        bare(axes, xlim=(-margin, self.columns - 1 + margin), ylim=(self.rows - 1 + margin, -margin))
        axes.set_title(title)


def draw_steps(path, topology, algorithm):
    plan = Collective(topology, algorithm)
    colours = [plan.colour(r) for r in range(plan.ranks)]
    fig, axes = figure(plan.title, "A colour is the rank that a chunk belongs to; filled arrows add, hollow replace.",
                       4.9, 2, len(plan.steps) // 2)
    for ax, (step, rows) in zip(axes, plan.steps.items()):
        plan.draw(ax, [([row], plan.colour(row.owner), row.add) for row in rows], colours, range(plan.ranks),
                  f"step {step}: {len(rows)} of {len(plan.links)} links", 0.35)
    save(fig, path)


def draw_trees(path, topology, algorithm):
    plan = Collective(topology, algorithm)
    gather = [step for step, rows in plan.steps.items() if not rows[0].add]
    colours = {step: plt.cm.plasma(0.85 * i / len(gather)) for i, step in enumerate(gather)}
    fig, axes = figure(plan.title, "How a chunk goes out from the rank that has the sum first.", 9, 4, plan.ranks // 4)
    for root, ax in enumerate(axes):
        groups = [([row for row in plan.steps[step] if row.owner == root], colours[step], True) for step in gather]
        dots = [TEXT if r == root else "#cdd5de" for r in range(plan.ranks)]
        plan.draw(ax, groups, dots, [root], f"tree {root}", 0.66)
    save(fig, path, [(colours[step], f"step {step}") for step in gather])


def draw_links(path, topology, algorithm):
    plan = Collective(topology, algorithm)
    links = sorted({(r, (r // plan.columns + y) % plan.rows * plan.columns + (r % plan.columns + x) % plan.columns)
                    for r in range(plan.ranks) for x, y in ((0, 1), (1, 0), (0, -1), (-1, 0))})
    image, busy = [[plan.colour(a) for a, _ in links]], []
    for rows in plan.steps.values():
        cells = {}
        for row in rows:
            cells[row.source, row.to] = TEXT if (row.source, row.to) in cells else plan.colour(row.owner)
        image.append([cells.get(link, IDLE) for link in links])
        busy.append(100 * len(cells) / len(links))
    note = ("A column is a link, a row a step, a colour the rank that the chunk belongs to; gray: chunks of several, "
            "black: several messages.")
    fig, axes = figure(plan.title, note, 1.7 + 0.13 * len(image), 1, 2, width_ratios=[9, 1], sharey=True)
    axes[0].imshow([[matplotlib.colors.to_rgb(c) for c in row] for row in image], aspect="auto",
                   interpolation="none")
    axes[0].set(xticks=range(0, len(links), 8), xticklabels=[a for a, _ in links[::8]], yticks=range(0, len(image), 4),
                xlabel="sender of the link, whose colour is in row 0", ylabel="step")
    axes[1].barh(range(1, len(image)), busy, color="#5b7fa6")
    axes[1].set(xlim=(0, 100), xlabel="busy links, %")
    save(fig, path)


# ---- what ranks hold

def bars(path, title, bars_of, labels):
    """bars_of: {bar: {part: size}}, from the top, and from left to right; labels: what stands at their ends"""
    parts = list(dict.fromkeys(part for bar in bars_of.values() for part in bar))
    fig, (axes,) = figure(title, "", 0.8 + 0.3 * len(bars_of))
    for y, (bar, label) in enumerate(zip(bars_of.values(), labels)):
        ends = list(itertools.accumulate(bar.values()))
        colours = [COLOURS[parts.index(part)] for part in bar]
        axes.barh([y] * len(bar), bar.values(), 0.75, [0, *ends[:-1]], color=colours)
        axes.annotate(label, (ends[-1], y), (6, 0), textcoords="offset points", va="center", color=GRAY)
    axes.set(yticks=range(len(bars_of)), yticklabels=bars_of, xticks=[])
    axes.invert_yaxis()
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    save(fig, path, list(zip(COLOURS, parts)))


def draw_memory(path):
    parts, found = ("parameters", "gradients", "optimizer", "activations", "scratch"), {}
    for choice in "zero 0", "zero 1", "zero 2", "zero 1 --recompute selective", "zero 1 --recompute full":
        text = run("./train_gpt --model gpt2-124M --vocab 50257 --dp 8 --micro-batch 4 --global-batch 128 "
                   f"--eval-every 0 --data LICENSE --dry-run --{choice}")
        words = next(line.split() for line in text.splitlines() if line.startswith("  0 "))
        found[choice.replace("--", "")] = dict(zip(parts, map(float, words[5:10])))
    bars(path, "gpt2-124M: memory of a rank of 8 replicas, float32", found,
         [f"{sum(x.values()):.1f} MB" for x in found.values()])


def draw_buckets(path):
    found = collections.defaultdict(dict)
    for row in table("buckets", "--dp", 4, "--zero", 1)[0]:
        found[f"block {row.layer}" if ".h." in row.tensor else row.tensor][f"data rank {row.rank}"] = row.elements
    bars(path, "tiny: gradient buckets of 4 replicas with ZeRO 1, as they are sent; elements", found,
         [sum(x.values()) for x in found.values()])


def draw_step(path):
    """6 FLOPs for each number of a matrix or vector, and of attention 6 L C T"""
    words = {"qkv": "c_attn.w", "attention": "^$", "attention's projection": "attn.c_proj.w", "mlp": "mlp.*w",
             "embedding and head": "wte", "vectors, positions": ""}
    sizes = collections.Counter(dict.fromkeys(words, 0))
    for row in table("tensors", "--model", "gpt2-124M")[0]:
        sizes[next(name for name, word in words.items() if re.search(word, row.tensor))] += 6 * row.elements
    found = {f"sequences of {T}": {**sizes, "attention": 6 * 12 * 768 * T} for T in (1024, 4096, 16384)}
    whole = [sum(x.values()) for x in found.values()]
    shares = {bar: {part: size / total for part, size in x.items()} for (bar, x), total in zip(found.items(), whole)}
    bars(path, "gpt2-124M: FLOPs of a training step for each token, by operation", shares, whole)


def draw_tensor(path, *options):
    """The matrices of the first block in Y = X A: inputs downwards, outputs to the right"""
    rows, note = table("matrices", "--tp", 2, *options)
    f, g, split = ("g", "\u1e21", True) if options else ("f", "g", False)
    says = ("g: all-gather of rows forward, reduce-scatter backward; \u1e21: the reverse" if split else
            "f: nothing forward, all-reduce backward; g: all-reduce forward, nothing backward")
    fig, (axes,) = figure("tiny: the matrices of a block on 2 tensor ranks" + ", sequence parallel" * split,
                          f"{says}; {note}", 4)
    x = 0
    for item, sign in (("stream", f), ("attn.c_attn", ""), ("attn.c_proj", g), ("stream", f), ("mlp.c_fc", ""),
                       ("mlp.c_proj", g), ("stream", "")):
        parts = [(*row[2:6], COLOURS[row.rank]) for row in rows if f"h.0.{item}." in row.matrix]
        parts = parts or [(0, 90 * r, 50, 90, COLOURS[r] if split else "#c9d1d9") for r in (0, 1)]
        for left, y, width, height, colour in parts:
            shapes(axes, [box(x + left, y, width, height)], colour)
        axes.text(x, -12, item, color=GRAY)
        x += max(part[0] + part[2] for part in parts) + 12
        axes.text(x + 10, 85, sign, style="italic", fontsize=13, ha="center")
        x += 36 * bool(sign)
    bare(axes, xlim=(-2, x), ylim=(515, -30))
    key = [] if split else [("#c9d1d9", "all rows, on both ranks")]
    save(fig, path, [(COLOURS[0], "tensor rank 0"), (COLOURS[1], "tensor rank 1"), *key])


def draw_checkpoint_plan(path):
    """A line for the embeddings and for each block, in the shapes of the file; a quarter as high"""
    rows, _ = table("matrices", "--tp", 2, "--pp", 2, "--dp", 2)
    fig, (axes,) = figure("model.safetensors: the rank that writes each part", "", 7)
    ends = collections.Counter()
    for name in dict.fromkeys(row.matrix for row in rows):
        parts, block = [row for row in rows if row.matrix == name], re.search(r"h\.(\d)", name)
        top = 180 * (1 + int(block[1])) if block else 0
        for row in parts:
            if row.writes:
                shapes(axes, [box(ends[top] + row.x, top + row.y / 4, row.width, row.height / 4)], RANKS[row.rank])
        axes.text(ends[top], top - 8, name[12:-7], fontsize=7)
        ends[top] += max(row.x + row.width for row in parts) + 44
    bare(axes, xlim=(-2, max(ends.values())), ylim=(870, -30))
    save(fig, path, [(c, f"rank {r} (t {r % 2}, d {r // 2 % 2}, p {r // 4})") for r, c in enumerate(RANKS)], 4)


def draw_caat_plan(path):
    fig, axes = figure("CAAT-Net: 32 channels of one token before and after a partial all-reduce, P = 0.5",
                       "Gray: the sum of 16 channels, the same on all ranks; the others are private, times sqrt(4).",
                       2.2, 1, 2, sharey=True)
    panels = (0, "o: the partial product of each rank"), (16, "z: added to its own stream")
    for ax, (shared, title) in zip(axes, panels):
        for rank in range(4):
            shapes(ax, [box(c, rank - 0.35, 0.88, 0.7) for c in range(shared, 32)], RANKS[2 * rank])
            shapes(ax, [box(c, rank - 0.35, 0.88, 0.7) for c in range(shared)], GRAY)
            ax.text(-0.5, rank, f"rank {rank}", ha="right", va="center")
        ax.set(title=title, xlim=(-3, 32), ylim=(3.5, -0.5))
        ax.axis("off")
    save(fig, path)


# ---- curves

def curves(axes, xlabel="", ylabel="", **more):
    axes.set(xlabel=xlabel, ylabel=ylabel, **more)
    axes.grid(axis="y", color=IDLE)
    axes.legend(frameon=False)


def draw_roofline(path):
    """The floors of operations at the peaks of an H200's data sheet"""
    rows = re.findall(r"^(\S.*?) +(\d+) +([\d.]+) +([\d.]+) +[\d.]+ +\w+ +[\d.]+ +([\d.]+) ",
                      run("dev/bench/roofline.py --model gpt2-124M --product 989.4 --copy 4.8 --peak 989.4"), re.M)
    fig, (axes,) = figure("gpt2-124M, a step of 65536 tokens on an H200, predicted: ms of arithmetic and of bytes",
                          "The number is the floor: the longest of both and of the exponentials.", 7)
    for y, (name, count, gflop, mb, floor) in enumerate(rows):
        axes.barh([y - 0.2, y + 0.2], [int(count) * float(gflop) / 989.4, int(count) * float(mb) / 4.8e3], 0.38,
                  color=["#2a66b8", "#e08a2c"])
        axes.annotate(floor, (float(floor), y), (5, 0), textcoords="offset points", va="center", fontsize=7.5)
    axes.set(yticks=range(len(rows)), yticklabels=[f"{row[1]} x {row[0]}" for row in rows], ylim=(len(rows), -1))
    save(fig, path, [("#2a66b8", "arithmetic at 989 TFLOP/s"), ("#e08a2c", "bytes at 4.8 TB/s")])


def draw_rounding(path):
    fig, (axes,) = figure("the mean of 4096 bf16 weights under AdamW", "rate 0.001; bf16 numbers are 2^-8 apart", 3.8)
    rows, _ = table("rounding")
    for i, colour in (1, "#2a66b8"), (2, "#e08a2c"), (3, "#b8322a"):
        axes.plot([row.step for row in rows], [row[i] for row in rows], color=colour, label=rows[0]._fields[i])
    curves(axes, "steps")
    save(fig, path)


def draw_figures(path):
    found = collections.defaultdict(lambda: collections.defaultdict(list))
    for line in run("./plan --runs planner/figures.tsv").splitlines():
        title, name, place, unit, published, ours, _, _ = line.split("\t")
        axis, x = place.rsplit(" ", 1)
        found[title, unit, axis][name].append((x, float(ours), math.nan if published == "-" else float(published)))
    fig, axes = figure("Narayanan et al. 2021, by ./plan", "lines: predicted; circles: published, read off the plots",
                       10, 4, 2)
    for ax, ((title, unit, axis), lines) in zip(axes, found.items()):
        for (name, points), colour in zip(lines.items(), COLOURS):
            x, ours, published = zip(*points)
            ax.plot(x, ours, color=colour, label=name)
            ax.plot(x, published, "o", color=colour, markerfacecolor="white")
        curves(ax, axis, unit, title=title, ylim=(0, 1.1 * ax.get_ylim()[1]))
    save(fig, path)


def expected_load(flows, paths, leaves):
    """Flows on the busiest of the paths of any leaf, on each of which `flows` choose a path at random: balls in bins"""
    total = 0
    for most in range(flows):
        fits = [1.0] + [0.0] * flows  # the probability that n flows on j paths put at most `most` on each
        for j in range(1, paths + 1):
            fits = [sum(fits[n - i] * math.comb(n, i) * (1 / j) ** i * (1 - 1 / j) ** (n - i)
                        for i in range(min(most, n) + 1)) for n in range(flows + 1)]
        total += 1 - fits[flows] ** leaves
        if fits[flows] ** leaves > 1 - 1e-9:
            break
    return total


def draw_transport(path, seeds="20"):
    """K rings, each with a rank under every leaf of a fat tree of K^2 ranks, sum vectors at the same time"""
    sides, found = [2, 4, 8, 16], collections.defaultdict(list)
    for side, transport in itertools.product(sides, ("route", "ecmp", "subflows", "random", "spray", "adaptive")):
        words = run(f"build/simulate --topology fattree:{side},2 --algorithm ring --groups {side} --packet 64KB "
                    f"--bytes {4 * side * side}MB --bandwidth 100GB/s --latency 100ns --transport {transport} "
                    f"--seeds {1 if transport == 'route' else seeds}").splitlines()[-1].split()
        found[transport].append([float(words[i]) * {"us": 1, "ms": 1e3, "s": 1e6}[words[i + 1]] for i in (9, 11)])
    fig, (axes,) = figure("rings of all ranks at once: time over the time without collisions",
                          "medians, up to the 99th percentile; dashed: flows on ECMP's busiest uplink, expected", 4.2)
    x, routes = [str(side * side) for side in sides], [route for route, _ in found.pop("route")]
    for (transport, times), colour in zip(found.items(), ("#b8322a", "#e08a2c", "#8457bd", "#2a66b8", "#238b4d")):
        axes.errorbar(x, [t[0] / route for t, route in zip(times, routes)], color=colour, label=transport, capsize=3,
                      yerr=[[0] * 4, [(t[1] - t[0]) / route for t, route in zip(times, routes)]])
    axes.plot(x, [expected_load(side, side, side) for side in sides], "--", color="#b8322a")
    curves(axes, "ranks of a fat tree of two levels; leaves, ranks of a leaf and uplinks are their square root",
           ylim=(0, None))
    save(fig, path)


TABLES = {"multitree_trees": (draw_trees, "torus:4x4", "multitree"),
          "multitree_steps": (draw_steps, "mesh:3x3", "multitree"),
          "multitree_links": (draw_links, "torus:8x8", "multitree"),
          "halving-doubling_links": (draw_links, "torus:4x4", "halving-doubling"),
          "tensor": (draw_tensor,), "sequence": (draw_tensor, "--sequence-parallel")}
TABLES.update({name: (draw_schedule, name) for name in ("plan", "gpipe", "1f1b", "interleaved", "zb-h1", "zb-v")})
TABLES.update({name: (globals()["draw_" + name],) for name in (
    "async_plan", "caat_plan", "checkpoint_plan", "memory", "buckets", "step", "roofline", "rounding", "figures")})
RUNS = {"measured": draw_measured, "transport": draw_transport}


def main():
    if plt is None:
        sys.exit("plot.py needs matplotlib: pip install matplotlib")
    plt.rcParams.update({
        "svg.fonttype": "none", "svg.hashsalt": "threefold", "font.size": 8.5, "axes.titlesize": 8.5,
        "font.sans-serif": ["DejaVu Sans", "Helvetica", "sans-serif"], "axes.spines.top": False,
        "axes.spines.right": False, "axes.edgecolor": "#8c959f", "axes.labelcolor": GRAY, "text.color": TEXT,
        "xtick.color": GRAY, "ytick.color": TEXT})
    if sys.argv[1:2] and sys.argv[1] in RUNS:
        return RUNS[sys.argv[1]](*sys.argv[2:])
    for name in sys.argv[1:] or TABLES:
        draw, *options = TABLES[name]
        draw(os.path.join(ROOT, "docs", "images", f"{name}.svg"), *options)


if __name__ == "__main__":
    main()
