#!/usr/bin/env python3
"""Draws the first rank of some traces, one below the other on one time axis.

    python3 dev/plot/plot_overlap.py OUT.svg LABEL=TRACE ...

TRACE is a file of --trace. From the fourth step on, as long as the slowest needs for three steps: what the rank
computed, what was in flight to other replicas (tracks "data" and "inter_site"), and when it waited for that.
Standard library only.
"""
import json
import sys
from xml.sax.saxutils import escape

WIDTH, LEFT, RIGHT, TOP, ROW, GAP = 760, 190, 16, 30, 16, 22
FIRST, STEPS = 4, 3
COLORS = {'forward': '#7fb2e5', 'backward': '#2f6fb3', 'reduce': '#c9a227', 'norm': '#c9a227', 'update': '#5a9e54',
          'inter_site': '#d1605e',
          'wait': '#b9b9b9'}


def read(path):
    """Spans of rank 0: (track, name, begin, end) in seconds; tracks without their numbers."""
    with open(path, encoding='utf-8') as f:
        events = json.load(f)['traceEvents']
    tracks = {e['tid']: e['args']['name'] for e in events
              if e['ph'] == 'M' and e['name'] == 'thread_name' and e['pid'] == 0}
    return [(tracks[e['tid']].split()[0], e['name'], e['ts'] / 1e6, (e['ts'] + e['dur']) / 1e6)
            for e in events if e['ph'] == 'X' and e['pid'] == 0]


def union(spans):
    """Spans that touch become one."""
    out = []
    for begin, end in sorted(spans):
        if out and begin <= out[-1][1]:
            out[-1][1] = max(out[-1][1], end)
        else:
            out.append([begin, end])
    return out


def begin_of_step(spans, number):
    found = [begin for track, name, begin, _ in spans if track == 'step' and name == f'step {number}']
    if not found:
        sys.exit(f'plot_overlap.py: a trace has no step {number}')
    return found[0]


def rows_of(spans):
    """The three rows: what they are called, and (begin, end, color)."""
    computes = [(b, e, COLORS[n.split()[0]]) for t, n, b, e in spans if t == 'compute' and n.split()[0] in COLORS]
    talks = [(b, e, COLORS['inter_site']) for b, e in union([s[2:] for s in spans if s[0] in ('data', 'inter_site')])]
    waits = [(b, e, COLORS['wait']) for b, e in union([s[2:] for s in spans if s[0] == 'wait'])]
    return [('computes', computes), ('in flight', talks), ('waits', waits)]


def main():
    if len(sys.argv) < 3 or not all('=' in a for a in sys.argv[2:]):
        sys.exit(__doc__.split('\n')[0])
    traces = [(a.split('=', 1)[0], read(a.split('=', 1)[1])) for a in sys.argv[2:]]
    start = [begin_of_step(spans, FIRST) for _, spans in traces]
    seconds = max(begin_of_step(spans, FIRST + STEPS) - s for (_, spans), s in zip(traces, start))
    height = TOP + len(traces) * (3 * (ROW + 3) + GAP) + 24
    scale = (WIDTH - LEFT - RIGHT) / seconds
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
           f'font-family="sans-serif" font-size="11">',
           f'<rect width="{WIDTH}" height="{height}" fill="white"/>']
    x = 8
    for what in ('forward', 'backward', 'reduce', 'update', 'inter_site', 'wait'):
        label = {'reduce': 'sum, norm', 'inter_site': 'message to other replicas',
                 'wait': 'waits for it'}.get(what, what)
        out.append(f'<rect x="{x}" y="9" width="10" height="10" fill="{COLORS[what]}"/>'
                   f'<text x="{x + 14}" y="18">{label}</text>')
        x += 34 + 6 * len(label)
    y = TOP
    for (name, spans), zero in zip(traces, start):
        out.append(f'<text x="8" y="{y + ROW + 15}" font-weight="bold">{escape(name)}</text>')
        for row, marks in rows_of(spans):
            out.append(f'<text x="{LEFT - 6}" y="{y + 12}" text-anchor="end" fill="#555">{row}</text>')
            for begin, end, color in marks:
                a, b = max(begin - zero, 0), min(end - zero, seconds)
                if b > a:
                    out.append(f'<rect x="{LEFT + a * scale:.2f}" y="{y}" width="{max((b - a) * scale, 0.3):.2f}" '
                               f'height="{ROW}" fill="{color}"/>')
            y += ROW + 3
        for number in range(FIRST, FIRST + 50):
            steps = [b for t, n, b, _ in spans if t == 'step' and n == f'step {number}' and 0 <= b - zero <= seconds]
            for b in steps:
                at = LEFT + (b - zero) * scale
                out.append(f'<line x1="{at:.2f}" x2="{at:.2f}" y1="{y - 3 * (ROW + 3)}" y2="{y}" '
                               f'stroke="black" stroke-width="0.6"/>')
        y += GAP
    out.append(f'<text x="{LEFT}" y="{height - 8}" fill="#555">{seconds * 1e3:.0f} ms; '
               f'lines: a step begins</text></svg>')
    with open(sys.argv[1], 'w', encoding='utf-8') as f:
        f.write('\n'.join(out) + '\n')


main()
