#!/usr/bin/env python3
"""scripts/report.py RUN [RUN ...] [-o FILE]: one or several runs as a page: figures, curves, options, samples.

    scripts/report.py run                        writes run/report.html
    scripts/report.py run other -o both.html     two runs in the same plots

RUN is a folder that train_gpt --out has made, or a log.jsonl. What is read:

    log.jsonl      one JSON object a step; lines that are none (a disk that was full, a run that writes now) are skipped
                   and counted; what a resumed run wrote again replaces what it wrote before
    options.txt    the options of the run, and what follows from them
    stdout.txt     a copy of what the trainer printed: the model's samples

The page is one file without scripts, which needs no network. A plot has room for some 500 points: of a longer curve,
equally many steps after each other are one place, where their least and their greatest value stand, so that no outlier
is lost. Standard library only.
"""
import argparse, html, json, math, os, re, statistics, sys

COLORS = "#2563eb #e0542e #0d9467 #9c3fc4 #b97d00 #0887a5 #d02f69 #5f6b7a".split()
MOST_PLACES, MOST_SAMPLES, LONGEST_SAMPLE = 250, 8, 20000
# the title of a plot, its curve, what is drawn as points, whether its axis begins at 0
PLOTS = [("loss (points: validation)", "loss", "val_loss", False), ("gradient norm", "grad_norm", None, True),
         ("learning rate", "lr", None, True), ("tokens per second", "tokens_per_s", None, True),
         ("memory of the fullest rank, bytes", "peak_mem_bytes", None, True)]
STYLE = """body { font: 14px/1.45 system-ui, sans-serif; max-width: 75em; margin: auto; padding: 1em; color: #1a1f26 }
table { border-collapse: collapse; margin: 8px 0 } td, th { padding: 2px 14px 2px 0; text-align: left }
td { border-top: 1px solid #e4e7ec; overflow-wrap: anywhere } .differs td { background: #fff6d6 }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(480px, 1fr)); gap: 12px }
svg { width: 100%; overflow: visible; font: 11px sans-serif } svg text { fill: #667080 } .warning { color: #b54708 }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: #f5f6f8; padding: 10px }"""


def is_number(x):
    return isinstance(x, (int, float)) and not isinstance(x, bool) and abs(x) < 1e38


def read_log(path):
    """The log's lines by step, in their order, and how many lines are none."""
    rows, broken = [], 0
    with open(path, "rb") as f:
        for line in filter(None, map(bytes.strip, f)):
            try:
                row = json.loads(line.decode("utf-8"))
            except (ValueError, RecursionError):
                row = None
            if not isinstance(row, dict) or not is_number(row.get("step")):
                broken += 1
                continue
            while rows and rows[-1]["step"] >= row["step"]:
                rows.pop()
            rows.append(row)
    return rows, broken


def read_text(folder, name):
    path = os.path.join(folder, name)
    if not os.path.isfile(path):
        return ""
    with open(path, encoding="utf-8", errors="replace") as f:
        return f.read()


def read_samples(text):
    """What the model wrote: [(step, text)], evenly chosen, the last one among them."""
    samples, step, writes = [], 0, False
    for line in text.replace("\r", "\n").split("\n"):
        at = re.match(r"step +(\d{1,15})/\d+ \|", line)
        if at:
            step = int(at.group(1))
        if at or re.match(r"(done|saved|skipped|evaluated|traffic|trace) ", line):
            writes = False
        elif line == "sample:":
            writes = True
            samples.append((step, []))
        elif writes:
            samples[-1][1].append(line)
    every = max(1, math.ceil(len(samples) / MOST_SAMPLES))
    return [(step, "\n".join(lines).strip("\n")[:LONGEST_SAMPLE]) for step, lines in samples[::-1][::every][::-1]]


def read_run(path):
    log = os.path.join(path, "log.jsonl") if os.path.isdir(path) else path
    if not os.path.isfile(log):
        sys.exit(f"report.py: {path}: there is no log.jsonl: give the folder of a run (train_gpt --out)")
    folder = os.path.dirname(os.path.abspath(log))
    rows, broken = read_log(log)
    options = re.findall(r"(?m)^(# )?--([\w-]+)[ \t]*(.*?)\s*$", read_text(folder, "options.txt"))
    return {"name": os.path.basename(folder), "rows": rows, "broken": broken,
            "options": {name: (value or "yes") + (" (default)" if default else "") for default, name, value in options},
            "samples": read_samples(read_text(folder, "stdout.txt"))}


def values(run, name):
    """[(step, value)] of a curve, None where it is no number."""
    return [(row["step"], row[name] if is_number(row.get(name)) else None) for row in run["rows"]]


def thinned(curve):
    """The curve; if it is long, the least and the greatest value of each of MOST_PLACES places, in their order."""
    edges = [i * len(curve) // MOST_PLACES for i in range(MOST_PLACES + 1)]
    if len(curve) <= 2 * MOST_PLACES:
        return curve
    kept = []
    for part in (curve[begin:end] for begin, end in zip(edges, edges[1:])):
        numbers = sorted((p for p in part if p[1] is not None), key=lambda p: p[1]) or [part[0]]
        kept += sorted({numbers[0], numbers[-1]})
    return kept


def ticks(low, high):
    """Some five round numbers from low to high."""
    raw = (high - low) / 5
    power = 10 ** math.floor(math.log10(raw))
    step = power * next(x for x in (1, 2, 5, 10) if x * power >= 0.7 * raw)
    return [i * step for i in range(math.ceil(low / step), math.floor(high / step) + 1)]


def readable(x):
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e4)):
        if abs(x) >= size:
            return f"{x / (1e3 if unit == 'k' else size):.3g} {unit}"
    return f"{x:.4g}"


def plot(title, lines, points, from_zero):
    """A picture. lines, points: a list of (step, value) for each run."""
    numbers = [p for curve in lines + points for p in curve if p[1] is not None]
    if not numbers:
        return ""
    left, top, width, height = 56, 26, 560, 240
    first, last = min(p[0] for p in numbers), max(p[0] for p in numbers)
    low, high = min([p[1] for p in numbers] + [0] * from_zero), max(p[1] for p in numbers)
    margin = 0.05 * (high - low) or abs(high) or 1
    low, high, last = low - margin * (not from_zero or low < 0), high + margin, max(last, first + 1)
    x = lambda step: left + (width - left - 8) * (step - first) / (last - first)
    y = lambda value: height - 22 - (height - 22 - top) * (value - low) / (high - low)
    out = [f'<svg viewBox="0 0 {width} {height}"><text x="{left}" y="14" font-weight="600">{html.escape(title)}</text>']
    for tick in ticks(low, high):
        out.append(f'<path d="M{left} {y(tick):.1f}H{width - 8}" stroke="#e4e7ec"/>'
                   f'<text x="{left - 6}" y="{y(tick) + 4:.1f}" text-anchor="end">{readable(tick)}</text>')
    out += [f'<text x="{x(tick):.1f}" y="{height - 6}" text-anchor="middle">{readable(tick)}</text>'
            for tick in ticks(first, last) if tick == int(tick)]
    for i, curve in enumerate(lines):
        path, pen = "", "M"  # a value that is no number interrupts the line
        for step, value in thinned(curve):
            path += "" if value is None else f"{pen}{x(step):.1f} {y(value):.1f}"
            pen = "M" if value is None else "L"
        out.append(f'<path d="{path}" fill="none" stroke="{COLORS[i % len(COLORS)]}" stroke-width="1.3"/>')
    for i, curve in enumerate(points):
        out += [f'<circle cx="{x(step):.1f}" cy="{y(value):.1f}" r="3" fill="#fff" stroke="{COLORS[i % len(COLORS)]}"/>'
                for step, value in thinned(curve) if value is not None]
    return "".join(out) + "</svg>"


def row(cells, kind="td", differs=False):
    return f'<tr{" class=differs" * differs}>' + "".join(f"<{kind}>{cell}</{kind}>" for cell in cells) + "</tr>\n"


def name_of(runs, i):
    return f'<span style="color:{COLORS[i % len(COLORS)]}">&#9632;</span> {html.escape(runs[i]["name"])}'


def figures(run):
    """Cells: last step and losses, best validation, sums of tokens and time, medians of speed, the most memory."""
    of = {name: [v for _, v in values(run, name) if v is not None] for name in
          ("step", "loss", "val_loss", "tokens", "step_ms", "tokens_per_s", "mfu", "peak_mem_bytes")}
    show = lambda name, how, text: text(how(of[name])) if of[name] else "-"
    last, loss, middle = lambda x: x[-1], "{:.4f}".format, statistics.median
    return [show("step", last, str), show("loss", last, loss), show("val_loss", last, loss),
            show("val_loss", min, loss), show("tokens", sum, readable),
            show("step_ms", sum, lambda ms: f"{ms / 1e3:.4g}"), show("tokens_per_s", middle, readable),
            show("mfu", middle, "{:.1%}".format), show("peak_mem_bytes", max, readable)]


def page(runs):
    title = html.escape(" · ".join(run["name"] for run in runs))
    out = [f'<!DOCTYPE html>\n<meta charset="utf-8">\n<title>{title}</title>\n<style>{STYLE}</style>\n',
           f"<h1>{title}</h1>\n<table>\n",
           row("run step loss validation best tokens seconds tokens/s MFU bytes".split(), "th")]
    out += [row([name_of(runs, i)] + figures(run)) for i, run in enumerate(runs)] + ["</table>\n"]
    for run in runs:
        skipped = sum(one.get("skipped") is True for one in run["rows"])
        for count, what in ((run["broken"], "lines of log.jsonl cannot be read"), (skipped, "steps were skipped")):
            out += [f'<p class="warning">{html.escape(run["name"])}: {count} {what}</p>\n'] * (count > 0)
    curves = lambda name: [values(run, name) for run in runs if name]
    plots = [plot(text, curves(line), curves(points), from_zero) for text, line, points, from_zero in PLOTS]
    out += ['<div class="plots">\n', "\n".join(plots), "</div>\n<h2>Options</h2>\n<table>\n",
            row([""] + [name_of(runs, i) for i in range(len(runs))], "th")]
    for name in dict.fromkeys(name for run in runs for name in run["options"]):
        texts = [run["options"].get(name, "-") for run in runs]
        out.append(row([f"--{name}"] + [html.escape(text) for text in texts], differs=len(set(texts)) > 1))
    out.append("</table>\n")
    for i, run in enumerate(runs):
        out += [f"<h2>{name_of(runs, i)}, step {step}</h2>\n<pre>{html.escape(text)}</pre>\n"
                for step, text in run["samples"]]
    return "".join(out)


def main():
    parser = argparse.ArgumentParser(prog="report.py", description="runs as a page", epilog=__doc__.split("\n", 2)[2],
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="+", metavar="RUN", help="folder of train_gpt --out, or a log.jsonl")
    parser.add_argument("-o", "--output", metavar="FILE", help="the page [report.html in the first run's folder]")
    o = parser.parse_args()
    first = o.run[0] if os.path.isdir(o.run[0]) else os.path.dirname(o.run[0])
    path = o.output or os.path.join(first, "report.html")
    try:
        text = page([read_run(path) for path in o.run])
        with open(path + ".tmp", "w", encoding="utf-8", errors="replace") as f:
            f.write(text)
        os.replace(path + ".tmp", path)
    except OSError as error:
        sys.exit(f"report.py: {error.filename}: {error.strerror}")
    print(f"{path}: {', '.join(o.run)}")


if __name__ == "__main__":
    main()
