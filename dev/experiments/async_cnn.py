#!/usr/bin/env python3
"""Asynchronous data parallelism on its own ground: a small CNN, SGD with momentum, batches up to where synchronous
training degrades, 2 to 16 replicas, delays up to 16 steps, with and without the compensation.

    async_cnn.py [--out FOLDER]            everything: some 600 runs of a second each
    async_cnn.py --quick [--out FOLDER]    does everything work? A minute; the errors say nothing
    async_cnn.py --report [--out FOLDER]   the tables, the picture and the verdicts again, of what is there

dev/experiments/repro_async.sh cnn builds what this needs. The first comment of async_cnn.c, the program that is run,
has the network and the update of each mode. Every run sees the same number of pictures.

The learning rate. Each configuration has its own: of three rates a factor of 2 apart (ten times as high without
momentum) the one with the lowest mean test error over two seeds of their own; while that is the lowest or the highest
rate tried, half or twice of it is tried too. The errors are of other seeds at that rate.

Every run is added to a record (--record FILE, a line a run) as soon as it ends, and is not made again: the same command
goes on after an interruption. async_cnn.json is the record of the project's own runs. Two configurations differ where
their mean errors are further apart than twice the spread over seeds (the root of the mean of the two variances)."""
import argparse
import json
import math
import os
import re
import statistics
import sys
import time

import runs
from runs import PROJECT, read_json, stop

BATCHES, BATCH, REPLICAS, DELAYS, MOMENTA = (32, 128, 512), 128, (2, 4, 8, 16), (1, 4, 16), (0.9, 0)
RATES, TUNING_SEEDS, CHANCE = (0.05, 0.1, 0.2), (100, 101), 15 / 16
LAMBDAS, FIXED = (0.05, 0.5, 1, 2), (32, 1024)  # lambda0 beside 0 and 0.2; DC-ASGD's constant lambda


def sync(batch, momentum=0.9):
    return f'--mode sync --batch {batch} --momentum {momentum:g}'


def late(batch, lambda0, delay=1, momentum=0.9, option='lambda0'):
    return f'--mode delayed --batch {batch} --momentum {momentum:g} --delay {delay} --{option} {lambda0:g}'


def s3gd(batch, lambda0, replicas=8, momentum=0.9):
    return f'--mode dc-s3gd --batch {batch} --momentum {momentum:g} --replicas {replicas} --lambda0 {lambda0:g}'


def configurations():
    """All of them, the main comparison first."""
    out = [c for b in (128, 32, 512) for c in [sync(b)] + [f(b, x) for f in (s3gd, late) for x in (0, 0.2)]]
    out += [late(32, x, d, m) for m in MOMENTA for d in DELAYS for x in (0, 0.2)]
    out += [sync(32, 0)] + [s3gd(32, x, 8, 0) for x in (0, 0.2)]
    out += [s3gd(BATCH, x, n) for n in (16, 2, 4) for x in (0, 0.2)]
    out += [s3gd(BATCH, x) for x in LAMBDAS] + [late(32, x, 4) for x in LAMBDAS]
    out += [late(32, x, 4, m, 'lambda') for m in MOMENTA for x in FIXED]
    return list(dict.fromkeys(out))


class Record:
    """The complete runs: {options of async_cnn: what it printed, with commit, machine and date}."""

    def __init__(self, path):
        self.path, self.runs = path, (read_json(path) or {'runs': {}})['runs']

    def add(self, key, result):
        self.runs[key] = result
        lines = [f'{json.dumps(k)}: {json.dumps(r)}' for k, r in self.runs.items()]
        with open(self.path + '.tmp', 'w', encoding='utf-8') as f:
            f.write('{"runs": {\n' + ',\n'.join(lines) + '\n}}\n')
        os.replace(self.path + '.tmp', self.path)


def error_of(o, options, lr, seed, train=True):
    """The test error of a run, which is made unless the record has it; train False: None then."""
    key = f'{options} --epochs {o.epochs} --samples {o.samples} --lr {lr:g} --seed {seed}'
    if key not in o.record.runs:
        if not train:
            return None
        status, lines = runs.lines_of([o.program] + key.split())
        if status != 0:
            stop(f'{o.program} {key} failed: {"".join(lines[-3:]).strip()}')
        o.record.add(key, dict(json.loads(lines[-1]), commit=o.commit, machine=o.machine, date=time.strftime('%F')))
    run = o.record.runs[key]
    return CHANCE if run['diverged'] else run['error']


def tuned(o, options, train=True):
    """The learning rate of a configuration; None: its runs are not complete."""
    rates, errors, scale = o.rates, {}, 10 if options.split()[5] == '0' else 1  # without momentum
    while True:
        for lr in rates:
            each = [error_of(o, options, lr * scale, seed, train) for seed in o.tuning_seeds]
            if None in each:
                return None
            errors[lr] = statistics.mean(each)
        best = min(sorted(errors), key=lambda lr: min(errors[lr], 0.9 * CHANCE))  # the lowest if none has learned
        if o.quick or min(errors) < best < max(errors) or best < 1e-4:
            return best * scale
        rates = [best * 2 if best == max(errors) else best / 2]


def run_all(o):
    for seeds in [o.seeds[:3], o.seeds[3:]][:1 if o.quick else 2]:
        for options in configurations():
            lr = tuned(o, options)
            found = [error_of(o, options, lr, seed) for seed in seeds]
            print(f'{options}: lr {lr:g}, error {runs.with_spread(found, 4)}', flush=True)


def errors(o, options):
    """Test errors in percent, of the seeds that are there."""
    lr = tuned(o, options, False)
    found = [error_of(o, options, lr, seed, False) for seed in o.seeds] if lr else []
    return [100 * e for e in found if e is not None]


def differ(o, words, holds, a, b, *bases):
    """A claim about how the error of configuration a is beside that of b; bases: of a and b, above which they are
    compared then, seed by seed."""
    pair = [errors(o, a), errors(o, b)]
    if bases:
        pair = [[x - y for x, y in zip(e, errors(o, base))] for e, base in zip(pair, bases)]
    got = runs.compare(*pair)
    if not got:
        return words, None, 'needs two seeds of both'
    seen = {-1: 'lower', 0: 'no difference beyond the spread', 1: 'higher'}[got.sign]
    return words, got.sign in holds, f'error {got.delta:+.1f} points, spread {got.spread:.1f}: {seen}'


def verdicts(o):
    better, equal, grows = (-1,), (-1, 0), (1,)
    claims = [('Synchronous training degrades from batch 32 to 512', grows, sync(512), sync(32))]
    claims += [(f'DC-S3GD (0.2) matches synchronous, batch {b}', equal, s3gd(b, 0.2), sync(b)) for b in BATCHES]
    claims += [(f'DC-S3GD: 0.2 is better than 0, batch {b}', better, s3gd(b, 0.2), s3gd(b, 0)) for b in BATCHES]
    claims += [(f'DC-S3GD: 0.2 is better than 0, {n} replicas', better, s3gd(BATCH, 0.2, n), s3gd(BATCH, 0, n))
               for n in (2, 4, 16)]
    claims += [('DC-S3GD: 0.2 is better than 0, no momentum', better, s3gd(32, 0.2, 8, 0), s3gd(32, 0, 8, 0)),
               ('DC-S3GD (0.2) matches synchronous, no momentum', equal, s3gd(32, 0.2, 8, 0), sync(32, 0)),
               ('The error of DC-S3GD grows from 2 to 16 replicas', grows, s3gd(BATCH, 0, 16), s3gd(BATCH, 0, 2))]
    claims += [(f'One step late: 0.2 is better than 0, batch {b}', better, late(b, 0.2), late(b, 0)) for b in BATCHES]
    for m in MOMENTA:
        claims += [(f'Delay {d}, momentum {m:g}: 0.2 is better than 0', better, late(32, 0.2, d, m), late(32, 0, d, m))
                   for d in DELAYS]
        claims += [(f'Delay {d}, momentum {m:g}, 0.2 matches synchronous', equal, late(32, 0.2, d, m), sync(32, m))
                   for d in DELAYS]
        claims += [(f'The error grows with the delay, {d} to {e}, momentum {m:g}', grows, late(32, 0, e, m),
                    late(32, 0, d, m) if d else sync(32, m)) for d, e in ((0, 1), (1, 4), (4, 16))]
    claims += [(f'Momentum makes a delay of {d} worse', grows, late(32, 0, d), late(32, 0, d, 0), sync(32), sync(32, 0))
               for d in DELAYS]
    for claim in claims:
        yield differ(o, *claim)


MODES = [('synchronous', sync), ('DC-S3GD, 0', lambda b: s3gd(b, 0)), ('DC-S3GD, 0.2', lambda b: s3gd(b, 0.2)),
         ('one step late, 0', lambda b: late(b, 0)), ('one step late, 0.2', lambda b: late(b, 0.2))]


def tables(o):
    """Lines of Markdown; errors in percent."""
    cell = lambda options: runs.with_spread(errors(o, options) or [math.nan], 1)
    out = ['| test error, % | ' + ' | '.join(f'batch {b}' for b in BATCHES) + ' |', '|---' * (len(BATCHES) + 1) + '|']
    out += [f'| {label} | ' + ' | '.join(cell(f(b)) for b in BATCHES) + ' |' for label, f in MODES]
    pairs = [(m, x) for m in MOMENTA for x in (0, 0.2)]
    out += ['', '| batch 32, delay | ' + ' | '.join(f'momentum {m:g}, {x:g}' for m, x in pairs) + ' |',
            '|---' * 5 + '|', '| 0 | ' + ' | '.join(cell(sync(32, m)) for m, _ in pairs) + ' |']
    out += [f'| {d} | ' + ' | '.join(cell(late(32, x, d, m)) for m, x in pairs) + ' |' for d in DELAYS]
    return out + ['', 'A constant lambda, batch 32, delay 4: ' + '; '.join(
        f'{x}, momentum {m:g}: {cell(late(32, x, 4, m, "lambda"))}' for m in MOMENTA for x in FIXED) + '.']


def curves():
    """The picture's panels: (title, values of x, [(label, colour, configurations)])."""
    pair = (('0', '#d62728'), ('0.2', '#1f77b4'))
    yield 'test error, %, by batch', BATCHES, [(label, colour, [f(b) for b in BATCHES]) for (label, f), colour in zip(
        MODES, ('#444444', '#ff9896', '#17becf', '#d62728', '#1f77b4'))]
    for m in MOMENTA:
        yield f'by delay, momentum {m:g}', (0,) + DELAYS, [
            (f'lambda0 {x}', colour, [sync(32, m)] + [late(32, float(x), d, m) for d in DELAYS]) for x, colour in pair]
    yield 'by replicas of DC-S3GD', REPLICAS, [
        (f'lambda0 {x}', colour, [s3gd(BATCH, float(x), n) for n in REPLICAS]) for x, colour in pair]
    xs = sorted(LAMBDAS + (0, 0.2))
    yield 'by lambda0', xs, [('delay 4, batch 32', '#9467bd', [late(32, x, 4) for x in xs]),
                          ('DC-S3GD, batch 128', '#2ca02c', [s3gd(BATCH, x) for x in xs])]


def picture(o, path):
    """Mean test error and standard deviation over seeds; values of x at equal distances."""
    W, H, left, top = 200, 220, 48, 34
    panels = list(curves())
    width, out = left + len(panels) * (W + 44), []
    for p, (title, xs, lines) in enumerate(panels):
        points = [[(i, *runs.mean_sd(e)) for i, e in enumerate(errors(o, c) for c in cs) if e] for _, _, cs in lines]
        high = 1.05 * max([10] + [m + (sd if sd == sd else 0) for line in points for _, m, sd in line])
        x0 = left + p * (W + 44)
        place = lambda i, v: (x0 + W * (i + 0.5) / len(xs), top + H * (1 - v / high))
        out.append(f'<rect x="{x0}" y="{top}" width="{W}" height="{H}" fill="none" stroke="#999"/>'
                   f'<text x="{x0}" y="{top - 10}" font-weight="bold">{title}</text>')
        for v in runs.round_steps(0, high, 5):
            out.append(f'<text x="{x0 - 4}" y="{place(0, v)[1] + 4:.1f}" text-anchor="end" fill="#555">{v:g}</text>')
        for i, v in enumerate(xs):
            out.append(f'<text x="{place(i, 0)[0]:.1f}" y="{top + H + 15}" text-anchor="middle">{v:g}</text>')
        for n, ((label, colour, _), line) in enumerate(zip(lines, points)):
            shift = 4 * (n - (len(lines) - 1) / 2)  # so that bars of equal values stay visible
            at = [(place(i, m)[0] + shift, place(i, m)[1], 0 if sd != sd else sd * H / high) for i, m, sd in line]
            out += [f'<path d="M{x:.1f} {y - sd:.1f}V{y + sd:.1f}" stroke="{colour}" stroke-width="2"/>'
                    f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y, sd in at]
            out.append(f'<polyline points="{" ".join(f"{x:.1f},{y:.1f}" for x, y, _ in at)}" fill="none" '
                       f'stroke="{colour}"/><text x="{x0}" y="{top + H + 36 + 16 * n}" fill="{colour}">{label}</text>')
    with open(path, 'w', encoding='utf-8') as f:
        f.write(f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{top + H + 110}" font-size="12" '
                'font-family="sans-serif"><rect width="100%" height="100%" fill="white"/>\n')
        f.write('\n'.join(out) + '</svg>\n')


def report(o):
    if not o.record.runs:
        stop(f'there is no complete run in {o.record.path}')
    origin = [sorted({r[k] for r in o.record.runs.values()}) for k in ('machine', 'date', 'commit')]
    text = tables(o) + ['', f'{len(o.record.runs)} runs; ' + '; '.join(', '.join(x) for x in origin) + '.', '']
    text += runs.verdict_lines(list(verdicts(o)))
    with open(os.path.join(o.out, 'report.md'), 'w', encoding='utf-8') as f:
        f.write('\n'.join(text) + '\n')
    picture(o, os.path.join(o.out, 'error.svg'))
    print('\n' + '\n'.join(text) + f'\n\n{o.out}: report.md, error.svg')


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n\n', maxsplit=1)[0])
    parser.add_argument('--out', default='repro_async_cnn', help='folder of the results [repro_async_cnn]')
    parser.add_argument('--record', metavar='FILE', help='complete runs, which are not made again [OUT/runs.json]')
    parser.add_argument('--quick', action='store_true', help='does everything work? The errors say nothing')
    parser.add_argument('--report', action='store_true', help='train nothing')
    parser.add_argument('--program', default=os.path.join(PROJECT, 'build/async_cnn'), help='[build/async_cnn]')
    o = parser.parse_args()
    os.makedirs(o.out, exist_ok=True)
    o.record = Record(o.record or os.path.join(o.out, 'quick.json' if o.quick else 'runs.json'))
    o.seeds, o.epochs, o.samples = ([1, 2], 1, 512) if o.quick else ([1, 2, 3, 4, 5], 6, 8192)
    o.rates, o.tuning_seeds = (RATES[:2], TUNING_SEEDS[:1]) if o.quick else (RATES, TUNING_SEEDS)
    if not o.report:
        os.path.exists(o.program) or stop(f'{o.program} is missing: dev/experiments/repro_async.sh cnn builds it')
        _, said = runs.lines_of(['git', '-C', PROJECT, 'rev-parse', '--short', 'HEAD'])
        o.commit = said[-1].strip()
        with open('/proc/cpuinfo', encoding='utf-8') as f:
            o.machine = f'{os.cpu_count()} cores of {re.search(r"model name.*: (.*)|$", f.read())[1]}'
        run_all(o)
    return report(o)


if __name__ == '__main__':
    sys.exit(runs.guarded(main))
