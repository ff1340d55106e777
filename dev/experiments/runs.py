"""runs.py: what experiments share that start many trainers: processes that end with this one, whole JSON files,
messages, means with their spread, verdicts, a plot of loss curves. guarded(main) runs such a program: on a signal or a
failure it first ends what it has started."""
import collections
import json
import math
import os
import signal
import statistics
import subprocess
import sys

PROJECT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
child = []  # processes that this one has started


def stop(text):
    sys.exit(f'{os.path.basename(sys.argv[0])}: {text}')


def duration(seconds):
    minutes = round(seconds / 60)
    if minutes >= 60:
        return f'{minutes // 60}:{minutes % 60:02d} h'
    return f'{minutes} min' if seconds >= 90 else f'{seconds:.0f} s'


def end_children():
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # a second one would leave what the first one ends
    for p in child:
        if p.poll() is None:
            p.terminate()  # net_torus.sh takes its network down
    for p in child:
        p.wait()
    child.clear()


def start(command, output=subprocess.PIPE):
    # One thread a rank: in namespaces with host names of their own, ranks do not know that they share a machine's
    # cores.
    p = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, text=True,
                         env=dict(os.environ, OMP_NUM_THREADS='1'))
    child.append(p)
    return p


def lines_of(command, on_line=lambda line: None):
    """Runs it to its end. Returns its exit status and what it wrote."""
    p = start(command)
    lines = []
    for line in p.stdout:
        lines.append(line)
        on_line(line)
    p.wait()
    child.remove(p)
    return p.returncode, lines


def on_star(path, ranks, mbit):
    """What stands before a command that `ranks` ranks run, each joined to a switch by a link; needs root. path: of a
    file for the network."""
    with open(path, 'w', encoding='utf-8') as f:
        print(f'nodes {ranks + 1} # the last one is the switch', file=f)
        for r in range(ranks):
            print(r, ranks, f'{mbit:g}', 0, file=f)
    net = 'dev/experiments/net_torus.sh'
    return [net, 'with', path, '--here', net, 'run', str(ranks)]


def read_json(path):
    try:
        with open(path, encoding='utf-8') as f:
            return json.load(f)
    except (OSError, ValueError):
        return None


def write_json(path, value):
    with open(path + '.tmp', 'w', encoding='utf-8') as f:
        json.dump(value, f, indent=1)
    os.replace(path + '.tmp', path)


def read_log(folder):
    try:
        with open(os.path.join(folder, 'log.jsonl'), encoding='utf-8') as f:
            return [json.loads(line) for line in f]
    except (OSError, ValueError):
        return []


def is_complete(folder, options):
    """A folder of this name is a complete run; of other options, it is not to be lost and not to be mixed in."""
    if not os.path.isdir(folder):
        return False
    if read_json(os.path.join(folder, 'options.json')) != options:
        stop(f'{folder} is a run with other options: give another --out, or remove it')
    return True


def mean_sd(values):
    values = list(values)
    return statistics.mean(values), statistics.stdev(values) if len(values) > 1 else math.nan


def with_spread(values, digits):
    m, sd = mean_sd(values)
    return f'{m:.{digits}f}' if math.isnan(sd) else f'{m:.{digits}f} ± {sd:.{digits}f}'


Difference = collections.namedtuple('Difference', 'delta percent spread sign')


def compare(a, b):
    """How much higher the mean of the losses a is than that of b, the spread, and -1, 0 or 1: lower, no difference
    seen, higher. None: cannot be said."""
    if not a or not b:
        return None
    (ma, sa), (mb, sb) = mean_sd(a), mean_sd(b)
    spread = math.sqrt((sa * sa + sb * sb) / 2)
    if math.isnan(spread):
        return None
    sign = 0 if abs(ma - mb) <= 2 * spread else 1 if ma > mb else -1
    return Difference(ma - mb, 100 * (ma - mb) / mb, spread, sign)


def loss_claim(got, holds, words):
    """got: of compare(); holds: of -1, 0, 1, those with which the claim is confirmed."""
    if not got:
        return words, None, 'needs two seeds of both'
    seen = {-1: 'lower', 0: 'no difference beyond the spread', 1: 'higher'}[got.sign]
    return (words, got.sign in holds, f'loss {got.delta:+.4f} ({got.percent:+.2f} %), spread {got.spread:.4f}: '
            f'{seen}')


def verdict_lines(claims):
    """Lines of Markdown; claims: (words, whether it holds or None, why)."""
    for words, holds, why in claims:
        word = 'not decided' if holds is None else 'confirmed' if holds else 'NOT CONFIRMED'
        yield f'- {words}: **{word}**. {why[0].upper() + why[1:]}.'


def round_steps(low, high, count):
    """About `count` round numbers between low and high."""
    raw = (high - low) / count
    unit = 10 ** math.floor(math.log10(raw))
    step = next(m * unit for m in (1, 2, 5, 10) if m * unit >= raw * 0.999)
    return [i * step for i in range(math.ceil(low / step), math.floor(high / step + 1e-9) + 1)]


def plot(path, curves, label, colour, panels, base):
    """Validation loss, a panel for each of panels, (title, unit); lines: means, bands: from the best to the worst seed.
    curves: {name: [((x for each panel), mean, lowest, highest)]}; base: the curve whose end is marked."""
    W, H, left, top, gap = (400 if len(panels) > 1 else 640), 300, 52, 40, 64
    width = left + len(panels) * (W + gap) - gap + 20
    height = top + H + 50 + 20 * math.ceil(len(curves) / 4)
    reference = curves.get(base) or next(iter(curves.values()))
    low = min(p[2] for k in curves.values() for p in k)
    high = max(reference[min(len(reference) // 5, len(reference) - 1)][1],
               low + 0.05)  # the first steep part is the same for all
    low -= 0.04 * (high - low)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
           f'font-size="12">',
           f'<rect width="{width}" height="{height}" fill="white"/>']
    y = lambda v: top + H * (high - v) / (high - low)
    for panel, (title, unit) in enumerate(panels):
        x0 = left + panel * (W + gap)
        end = max(k[-1][0][panel] for k in curves.values())
        x = lambda v: x0 + W * v / end
        out.append(f'<clipPath id="panel{panel}"><rect x="{x0}" y="{top}" width="{W}" height="{H}"/></clipPath>')
        out.append(f'<text x="{x0}" y="{top - 14}" font-weight="bold">validation loss{title and " " + title}</text>')
        for v in round_steps(low, high, 6):
            out.append(f'<line x1="{x0}" x2="{x0 + W}" y1="{y(v):.1f}" y2="{y(v):.1f}" stroke="#ddd"/>'
                       f'<text x="{x0 - 6}" y="{y(v) + 4:.1f}" text-anchor="end" fill="#555">{v:.4g}</text>')
        for v in round_steps(0, end, 6):
            out.append(f'<text x="{x(v):.1f}" y="{top + H + 16}" text-anchor="middle" fill="#555">{v:g}</text>')
        out.append(f'<text x="{x0 + W / 2}" y="{top + H + 32}" text-anchor="middle" fill="#555">{unit}</text>')
        target = f'{y(reference[-1][1]):.1f}'
        out.append(f'<line x1="{x0}" x2="{x0 + W}" y1="{target}" y2="{target}" stroke="#444" stroke-dasharray="3 4"/>')
        out.append(f'<g clip-path="url(#panel{panel})">')
        for name, k in curves.items():
            band = [(p[0][panel], p[3]) for p in k] + [(p[0][panel], p[2]) for p in reversed(k)]
            points = ' '.join(f'{x(a):.1f},{y(b):.1f}' for a, b in band)
            out.append(f'<polygon points="{points}" fill="{colour[name]}" fill-opacity="0.15"/>')
        for name, k in curves.items():
            points = ' '.join(f'{x(p[0][panel]):.1f},{y(p[1]):.1f}' for p in k)
            out.append(f'<polyline points="{points}" fill="none" stroke="{colour[name]}" stroke-width="1.8"/>')
        out.append('</g>')
        for name, k in curves.items():
            if y(k[-1][1]) >= top:
                out.append(f'<circle cx="{x(k[-1][0][panel]):.1f}" cy="{y(k[-1][1]):.1f}" r="3" '
                           f'fill="{colour[name]}"/>')
        out.append(f'<rect x="{x0}" y="{top}" width="{W}" height="{H}" fill="none" stroke="#999"/>')
    for i, name in enumerate(curves):
        x, line = left + i % 4 * (width - left) // 4, top + H + 58 + i // 4 * 20
        out.append(f'<rect x="{x}" y="{line - 7}" width="18" height="4" fill="{colour[name]}"/><text x="{x + 24}" '
                   f'y="{line}">{label[name]} '
                   f'<tspan fill="#555">{curves[name][-1][1]:.3f}</tspan></text>')
    out.append('</svg>')
    with open(path, 'w', encoding='utf-8') as f:
        f.write('\n'.join(out) + '\n')


def on_signal(number, frame):
    raise KeyboardInterrupt


def guarded(main):
    signal.signal(signal.SIGTERM, on_signal)
    try:
        return main()
    except KeyboardInterrupt:
        end_children()
        return stop('interrupted; the same command continues after the last complete run')
    except BaseException:
        end_children()
        raise
