#!/usr/bin/env python3
"""Draws the loss of one or more runs as an SVG: python3 dev/plot/plot_loss.py OUT.svg RUN [RUN ...]

RUN is a folder with a log.jsonl, or a log itself. Thin line: training loss of every step; thick: its running mean;
dots: validation loss, with the last value written beside it. Standard library only.
"""
import json
import os
import sys

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 360, 56, 110, 24, 44
COLORS = ["#1f6feb", "#d1242f", "#1a7f37", "#9a6700", "#8250df"]


def read_log(path):
    if os.path.isdir(path):
        path = os.path.join(path, "log.jsonl")
    with open(path, encoding="utf-8") as f:
        return [json.loads(line) for line in f]


def running_mean(values, weight):
    mean, out = values[0], []
    for v in values:
        mean += (v - mean) * weight
        out.append(mean)
    return out


def nice_steps(low, high, count):
    """About `count` round numbers between low and high."""
    raw = (high - low) / count
    unit = 10.0 ** len(str(int(raw))) / 10 if raw >= 1 else 10.0 ** -len(str(int(1 / raw)))
    step = next(m * unit for m in (1, 2, 5, 10, 20, 50) if m * unit >= raw)
    first = int(low / step)
    return [i * step for i in range(first, int(high / step) + 1) if low <= i * step <= high]


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    runs = [(path, read_log(path)) for path in sys.argv[2:]]
    losses = sorted(row["loss"] for _, log in runs for row in log)
    vals = [row["val_loss"] for _, log in runs for row in log if row["val_loss"] is not None]
    low, high = min(losses[:1] + vals), losses[-1]
    low, high = low - 0.05 * (high - low), high
    last = max(row["step"] for _, log in runs for row in log)

    def x(step):
        return LEFT + (WIDTH - LEFT - RIGHT) * step / last

    def y(loss):
        return TOP + (HEIGHT - TOP - BOTTOM) * (high - loss) / (high - low)

    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
           f'font-family="sans-serif" font-size="12">',
           f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>']
    for loss in nice_steps(low, high, 6):
        svg.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(loss):.1f}" y2="{y(loss):.1f}" stroke="#ddd"/>'
                   f'<text x="{LEFT - 8}" y="{y(loss) + 4:.1f}" text-anchor="end" fill="#555">{loss:g}</text>')
    for step in nice_steps(0, last, 6):
        svg.append(f'<text x="{x(step):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle" '
                   f'fill="#555">{step:g}</text>')
    svg.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle" fill="#555">step</text>')
    svg.append(f'<text x="{LEFT - 40}" y="{TOP - 8}" fill="#555">loss (nats per token)</text>')
    for i, (path, log) in enumerate(runs):
        color = COLORS[i % len(COLORS)]
        steps, loss = [r["step"] for r in log], [r["loss"] for r in log]
        for values, style in ((loss, 'stroke-opacity="0.3"'), (running_mean(loss, 0.1), 'stroke-width="2"')):
            points = " ".join(f"{x(s):.1f},{y(v):.1f}" for s, v in zip(steps, values))
            svg.append(f'<polyline points="{points}" fill="none" stroke="{color}" {style}/>')
        checked = [(r["step"], r["val_loss"]) for r in log if r["val_loss"] is not None]
        for s, v in checked:
            svg.append(f'<circle cx="{x(s):.1f}" cy="{y(v):.1f}" r="3.5" fill="white" '
                       f'stroke="{color}" stroke-width="2"/>')
        name = os.path.basename(os.path.normpath(path))
        if checked:
            svg.append(f'<text x="{x(checked[-1][0]) + 8:.1f}" y="{y(checked[-1][1]) + 4:.1f}" fill="{color}">'
                       f'val {checked[-1][1]:.3f}</text>')
        if len(runs) > 1:
            svg.append(f'<text x="{WIDTH - RIGHT + 8}" y="{TOP + 16 * i}" fill="{color}">{name}</text>')
    svg.append("</svg>")
    with open(sys.argv[1], "w", encoding="utf-8") as f:
        f.write("\n".join(svg) + "\n")


if __name__ == "__main__":
    main()
