#!/usr/bin/env python3
"""Draws how much longer a gradient burst takes by each transport than on routes without collisions, as an SVG:

    python3 dev/plot/plot_transport.py [OUT.svg] [SEEDS]

Fat trees of K^2 ranks (build/simulate, docs/transport.md): K rings, each with a rank under every leaf, sum vectors at
the same time. Lines: medians over the seeds; vertical: to the 99th percentile; dashed: the expected number of flows on
the busiest uplink (balls in bins). Two minutes. Standard library only."""
import math
import subprocess
import sys

SIDES = [2, 4, 8, 16]
COLOURS = {"ecmp": "#b8322a", "subflows": "#e08a2c", "random": "#8457bd", "spray": "#2a66b8", "adaptive": "#238b4d"}
LABELS = {"ecmp": "ECMP", "subflows": "4 subflows", "random": "random", "spray": "spray", "adaptive": "adaptive"}
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 900, 400, 60, 130, 56, 52


def expected_load(flows, paths, leaves):
    """Flows on the busiest of the paths of any leaf, on each of which `flows` choose a path at random."""
    total = 0
    for most in range(flows):
        fits = [1.0] + [0.0] * flows  # the probability that n flows on j paths put at most `most` on each
        for j in range(1, paths + 1):
            fits = [sum(fits[n - i] * math.comb(n, i) * (1 / j) ** i * (1 - 1 / j) ** (n - i)
                        for i in range(min(most, n) + 1)) for n in range(flows + 1)]
        more = 1 - fits[flows] ** leaves
        total += more
        if more < 1e-9:
            break
    return total


def seconds(number, unit):
    return float(number) * {"us": 1e-6, "ms": 1e-3, "s": 1}[unit]


def measure(side, seeds):
    """{transport: (median, 99th percentile)}, in units of the routes' time"""
    command = (f"build/simulate --topology fattree:{side},2 --algorithm ring --groups {side} --packet 64KB "
               f"--bytes {4 * side * side}MB --bandwidth 100GB/s --latency 100ns").split()
    found = {}
    for transport in ["route", *COLOURS]:
        runs = "1" if transport == "route" else str(seeds)
        out = subprocess.run([*command, "--transport", transport, "--seeds", runs], check=True, stdout=subprocess.PIPE,
                             text=True).stdout
        words = out.splitlines()[-1].split()
        found[transport] = seconds(*words[9:11]), seconds(*words[11:13])
    return {name: tuple(x / found["route"][0] for x in found[name]) for name in COLOURS}


def main():
    seeds = int(sys.argv[2]) if len(sys.argv) > 2 else 20
    points = {side: measure(side, seeds) for side in SIDES}
    loads = {side: expected_load(side, side, side) for side in SIDES}
    high = math.ceil(max([p[1] for row in points.values() for p in row.values()] + list(loads.values())))

    def x(side):
        return LEFT + 30 + (WIDTH - LEFT - RIGHT - 60) * SIDES.index(side) / (len(SIDES) - 1)

    def y(value):
        return TOP + (HEIGHT - TOP - BOTTOM) * (high - value) / high

    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
           'role="img" font-family="Helvetica, Arial, sans-serif" font-size="12" fill="#1f2937">',
           f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="10" fill="#fff" stroke="#d0d7de"/>',
           f'<text x="{LEFT}" y="30" font-size="15" font-weight="bold">rings of all ranks at once: time over the time '
           'without collisions</text>']
    for value in range(high + 1):
        svg.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}" stroke="#e9edf2"/>'
                   f'<text x="{LEFT - 10}" y="{y(value) + 4:.1f}" text-anchor="end">{value}</text>')
    for side in SIDES:
        svg.append(f'<text x="{x(side):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{side * side}</text>')
    axis = "ranks of a fat tree of two levels: leaves, ranks of a leaf, and uplinks are their square root"
    svg.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 14}" text-anchor="middle">{axis}</text>')
    line = " ".join(f"{x(side):.1f},{y(loads[side]):.1f}" for side in SIDES)
    svg.append(f'<polyline fill="none" stroke="#b8322a" stroke-width="1.5" stroke-dasharray="5 4" points="{line}"/>')
    last = None
    for name in COLOURS:
        colour = COLOURS[name]
        line = " ".join(f"{x(side):.1f},{y(points[side][name][0]):.1f}" for side in SIDES)
        svg.append(f'<g stroke="{colour}" fill="none"><polyline stroke-width="2" points="{line}"/>')
        svg += [f'<path d="M{x(side):.1f} {y(points[side][name][0]):.1f}V{y(points[side][name][1]):.1f}h-4h8"/>'
                for side in SIDES]
        at = y(points[SIDES[-1]][name][0]) + 4
        last = at if last is None else max(at, last + 14)
        svg.append(f'</g><text x="{x(SIDES[-1]) + 12:.1f}" y="{last:.1f}" fill="{colour}">{LABELS[name]}</text>')
    text = "\n".join([*svg, "</svg>"]) + "\n"
    with open(sys.argv[1], "w", encoding="utf-8") if len(sys.argv) > 1 else sys.stdout as out:
        out.write(text)
    print(*(f"{side}: {loads[side]:.2f} {points[side]}" for side in SIDES), sep="\n", file=sys.stderr)


if __name__ == "__main__":
    main()
