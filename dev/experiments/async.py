#!/usr/bin/env python3
"""Does asynchronous data parallelism keep its promises? A small GPT on a slow network, in every --dp-mode, three times.

    async.py --data TEXT [--out FOLDER]        everything: 24 runs, most of an hour on two cores
    async.py --data TEXT --sweep [MODE,...]    learning rates instead, one seed, without the network
    async.py --report [--out FOLDER]           the table, the picture and the verdicts again, of what is there

dev/experiments/repro_async.sh builds what this needs, fetches a text and calls it. Needs root
(dev/experiments/net_torus.sh makes the network); with --no-network the losses can be had without, but then the times
say nothing.

The network. Four replicas are four nodes, each with one cable to a switch. How fast the cables are follows from the
machine: first the computation of a step is measured (as many trainers at once as there are replicas, which do not know
of each other), then the cables get the rate at which the all-reduce of a step's gradients, 2 (d-1)/d of the parameters
from every replica, takes just as long. A synchronous step then takes about twice its computation, and what hides its
communication can be twice as fast at most.

The runs. All see the same tokens in the same order and validate on the same text. Time is the sum of the steps' times
in log.jsonl, which do not include validation. Runs of one seed follow each other, so that what slows the machine down
for a while hits all modes. A run is kept in FOLDER/MODE-SEED once it is complete: after an interruption the same
command continues with the next one.

The verdicts. Two modes differ where their mean losses are further apart than twice the standard deviation over seeds
(the root of the mean of the two modes' variances). With three seeds that is a plain rule, not a proof; the numbers are
printed beside it."""
import argparse
import glob
import math
import os
import re
import shutil
import statistics
import sys
import time

from runs import (child, compare, duration, guarded, is_complete, lines_of, loss_claim, on_star, plot, PROJECT,
                  read_json, read_log, start, stop, verdict_lines, with_spread, write_json)

REPLICAS, ROUND = 4, 32  # d; H
MODEL = '--arch gpt2 --layers 4 --hidden 96 --heads 3 --seq 64'.split()
BATCH = 64  # sequences in a step
STEPS = 960
COMMON = ['--warmup', '48', '--eval-every', str(ROUND), '--eval-sequences', '256', '--sample-every', '0']
ALLREDUCE = ['--allreduce', 'ring']
GOODPUT = 8948 / 9014  # of a full packet of net_torus.sh
UNLIMITED = 20000  # Mbit/s
SWEEP, SWEEP_SEED = [2e-3, 4e-3, 8e-3, 1.6e-2], 100

# The table of runs: name, what people read, options, learning rate, colour. --sweep is how the rates were chosen.
LR = 8e-3
SWEPT = {2e-3: 1.653, 4e-3: 1.538, 8e-3: 1.512, 1.6e-2: 1.953}  # losses of sync, TinyShakespeare, --sweep sync
LR_DELAYED = 1e-3  # at sync's rate it does not get below 2.5: 1e-3 2.096, 2e-3 2.375, 4e-3 2.441, 8e-3 2.533, likewise
# What is a round late diverges with DiLoCo's own 0.7 and 0.9 (eager 4.6, late 43.5 after 960 steps).
GENTLE = '--outer-lr 0.5 --outer-momentum 0.3'
RUNS = [
    ('sync', 'synchronous', '', LR, '#444444'),
    ('delayed', 'gradient one step late', '--dp-mode delayed --dc-lambda 0', LR_DELAYED, '#ff7f0e'),
    ('dc-s3gd-0', 'DC-S3GD, lambda 0', '--dp-mode dc-s3gd --dc-lambda 0', LR, '#17becf'),
    ('dc-s3gd', 'DC-S3GD, lambda 0.2', '--dp-mode dc-s3gd --dc-lambda 0.2', LR, '#1f77b4'),
    ('diloco', 'DiLoCo, H = 32', f'--dp-mode diloco --local-steps {ROUND}', LR, '#2ca02c'),
    ('streaming', 'Streaming DiLoCo', f'--dp-mode diloco --local-steps {ROUND} --fragments 4 --outer-delay 2', LR,
     '#9467bd'),
    ('eager', 'DiLoCo, eager', f'--dp-mode diloco --local-steps {ROUND} --eager {GENTLE}', LR, '#d62728'),
    ('late', 'DiLoCo, a round late', f'--dp-mode diloco --local-steps {ROUND} --outer-delay {ROUND} {GENTLE}', LR,
     '#e377c2'),
]
NAMES = [r[0] for r in RUNS]
LABEL, COLOUR = {r[0]: r[1] for r in RUNS}, {r[0]: r[4] for r in RUNS}
OPTIONS, RATE = {r[0]: r[2].split() for r in RUNS}, {r[0]: r[3] for r in RUNS}
# Steps t (mod H) at whose end a run sends or waits for what was sent. Other steps of these modes only compute.
TALKS = {'diloco': {0}, 'streaming': {8 * f + wait for f in range(4) for wait in (0, 2)}}
MARKS = [0.4, 0.6, 0.8, 1.0]  # of sync's run: the losses to be reached


# ---- Running the trainer -----------------------------------------------------------------------------------------

def launcher(o, mbit):
    """What stands before the trainer, so that REPLICAS ranks of it run; mbit None: without a network of their own."""
    if mbit is None:
        return ['scripts/mpirun.sh', '-np', str(REPLICAS)]
    return on_star(os.path.join(o.out, 'network.txt'), REPLICAS, mbit)


def shared_options(o):
    return MODEL + COMMON + ['--steps', str(o.steps), '--global-batch', str(BATCH), '--data', o.data]


def options_of(o, mode, lr, seed):
    return shared_options(o) + ['--dp', str(REPLICAS)] + ALLREDUCE + OPTIONS[mode] + [
        '--lr', f'{lr:g}', '--min-lr', f'{lr / 10:g}', '--seed', str(seed)]


def run(o, folder, options, mbit, title, left):
    """One run, unless it is complete. left(part of this run that is done) is the time to the end of everything, in
    seconds. Returns True if it is complete."""
    if is_complete(folder, options):
        return True
    part = folder + '.part'  # it gets its name when it is complete
    shutil.rmtree(part, ignore_errors=True)
    shown, clear = [time.time()], '\r\033[K' if sys.stdout.isatty() else ''

    def show(line):
        m = re.match(r'step +(\d+)/(\d+) .*?([\d.]+) ms', line)
        if m and time.time() - shown[0] > (1 if clear else 30):
            shown[0] = time.time()
            text = f'{title}: step {m[1]} of {m[2]}, {float(m[3]):.0f} ms; {duration(left(int(m[1]) / int(m[2])))} left'
            print(clear + text, end='' if clear else '\n', flush=True)

    status, lines = lines_of(launcher(o, mbit) + [o.trainer] + options + ['--out', part], show)
    log = read_log(part)
    if status != 0 or not log or log[-1]['step'] != o.steps:
        os.makedirs(part, exist_ok=True)
        with open(os.path.join(part, 'output.txt'), 'w', encoding='utf-8') as f:
            f.writelines(lines)
        print(f'{clear}{title}: failed (exit status {status}); all that it wrote is in {part}/output.txt:')
        print('    ' + '    '.join([x for x in lines if x.startswith('train_gpt:')] or lines[-5:]), flush=True)
        return False
    for checkpoint in glob.glob(os.path.join(part, 'step_*')):
        shutil.rmtree(checkpoint)
    write_json(os.path.join(part, 'options.json'), options)
    os.replace(part, folder)
    ms = statistics.mean(r['step_ms'] for r in log)
    print(f'{clear}{title}: validation loss {log[-1]["val_loss"]:.4f}, {ms:.1f} ms a step; {duration(left(1))} left',
          flush=True)
    return True


def median_ms(lines, skip):
    times = [float(m[1]) for m in (re.match(r'step .*?([\d.]+) ms', line) for line in lines) if m]
    return statistics.median(times[skip:]) if len(times) > skip else None


def measure_computation(o, steps):
    """Milliseconds of a step of one replica while the others compute too, and the number of parameters."""
    command = [o.trainer] + MODEL + ['--global-batch', str(BATCH // REPLICAS), '--steps', str(steps),
                                     '--eval-every', '0',
                                     '--sample-every', '0', '--data', o.data]
    many = [start(command) for _ in range(REPLICAS)]
    written = [p.communicate()[0].splitlines() for p in many]
    child.clear()
    times = [median_ms(w[:len(w) * 5 // 6], 8) for w in written]  # at the end some are alone
    if None in times:
        stop('the trainer does not run:\n    ' + '\n    '.join(written[0][-5:]))
    return statistics.mean(times), int(re.search(r'(\d+) parameters', '\n'.join(written[0]))[1])


def measure_sync(o, mbit, steps):
    status, lines = lines_of(launcher(o, mbit) + [o.trainer] + MODEL + ALLREDUCE + [
        '--dp', str(REPLICAS), '--global-batch', str(BATCH), '--steps', str(steps), '--eval-every', '0',
        '--sample-every', '0',
        '--data', o.data])
    ms = median_ms(lines, 8)
    if status != 0 or ms is None:
        stop('the synchronous trainer does not run on the network:\n    ' + '    '.join(lines[-5:]))
    return ms


def calibrate(o):
    """Chooses the rate of the cables, once for a folder."""
    path = os.path.join(o.out, 'calibration.json')
    same = MODEL + ['--global-batch', str(BATCH), '--replicas', str(REPLICAS)]
    c = read_json(path)
    if c:
        if c['options'] != same:
            stop(f'{o.out} was begun with another model or batch: give another --out')
        return c
    steps = 24 if o.quick else 72
    print(f'measuring the computation of a step: {REPLICAS} replicas at once, no network', flush=True)
    computation, parameters = measure_computation(o, steps)
    c = {'options': same, 'parameters': parameters, 'computation_ms': computation, 'mbit': None, 'sync_ms': None}
    if not o.no_network:
        ideal = 2 * (REPLICAS - 1) / REPLICAS * parameters * 4 * 8 / (computation * 1e-3) / GOODPUT * 1e-6
        c['mbit'] = o.mbit or float(f'{ideal:.3g}')
        print(f'  {computation:.1f} ms; {parameters} parameters: cables of {c["mbit"]:g} Mbit/s. A synchronous step on '
              f'them:',
              flush=True)
        c['unlimited_ms'] = measure_sync(o, UNLIMITED, steps)
        c['sync_ms'] = measure_sync(o, c['mbit'], steps)
        ratio = c['sync_ms'] / computation
        print(f'  {c["sync_ms"]:.1f} ms, {ratio:.2f} times its computation; on cables of {UNLIMITED} Mbit/s '
              f'{c["unlimited_ms"]:.1f} ms')
        if not 1.7 < ratio < 2.6:
            print(f'  That is not about 2: does something else run on this machine? (Remove {path} to measure again.)')
    write_json(path, c)
    return c


def run_all(o, c):
    plan = [(seed, mode) for seed in o.seeds for mode in o.modes]
    todo = [(s, m) for s, m in plan if not is_complete(os.path.join(o.out, f'{m}-{s}'), options_of(o, m, RATE[m], s))]
    step = c['computation_ms'] * 1e-3
    took = {m: (step * 1.15 if m != 'sync' else (c['sync_ms'] or c['computation_ms']) * 1e-3) * o.steps +
               o.steps / ROUND * step * 1.5 + 5 for m in NAMES}  # a guess, until one of that mode has run
    print(f'{len(plan)} runs of {o.steps} steps, {len(plan) - len(todo)} of them complete; about '
          f'{duration(sum(took[m] for _, m in todo))}', flush=True)
    failed = []
    for i, (seed, mode) in enumerate(todo):
        began = time.time()

        def left(done):
            now = time.time() - began
            this = took[mode] * (1 - done) if done < 0.1 else now / done - now
            return this + sum(took[m] for _, m in todo[i + 1:])

        title = f'[{len(plan) - len(todo) + i + 1}/{len(plan)}] {mode}, seed {seed}'
        if run(o, os.path.join(o.out, f'{mode}-{seed}'), options_of(o, mode, RATE[mode], seed), c['mbit'], title, left):
            took[mode] = time.time() - began
        else:
            failed.append(f'{mode}-{seed}')
            took[mode] = min(took[mode], time.time() - began)
    return failed


def sweep(o, modes):
    """Final validation loss for several learning rates; a seed that no run has."""
    took, n, results = None, len(modes) * len(SWEEP), {}
    for i, (mode, lr) in enumerate((m, x) for m in modes for x in SWEEP):
        began = time.time()

        def left(done):
            now = time.time() - began
            this = now / done - now if done > 0.05 else took or 0
            return this + (n - i - 1) * (took or (now / done if done > 0 else 0))

        folder = os.path.join(o.out, 'sweep', f'{mode}-{lr:g}')
        os.makedirs(os.path.dirname(folder), exist_ok=True)
        there = os.path.isdir(folder)
        if run(o, folder, options_of(o, mode, lr, SWEEP_SEED), None, f'[{i + 1}/{n}] {mode}, lr {lr:g}', left):
            results[mode, lr] = read_log(folder)[-1]['val_loss']
            took = took if there else time.time() - began
    print(f'\nvalidation loss after {o.steps} steps; seed {SWEEP_SEED}')
    print(f'{"lr":12}' + ''.join(f'{lr:>10g}' for lr in SWEEP) + '    best')
    for mode in modes:
        row = {lr: results[mode, lr] for lr in SWEEP if (mode, lr) in results}
        print(f'{mode:12}' + ''.join(f'{row[lr]:10.4f}' if lr in row else f'{"-":>10}' for lr in SWEEP) +
              (f'{min(row, key=row.get):8g}' if row else '') + 
              (f' (the table of runs has {RATE[mode]:g})' if row else ''))


# ---- Reading the runs --------------------------------------------------------------------------------------------

class Run:
    """What the report needs of a log."""

    def __init__(self, rows):
        seconds, tokens = 0.0, 0
        self.curve = []  # (step, tokens, seconds, validation loss)
        for r in rows:
            seconds, tokens = seconds + r['step_ms'] * 1e-3, tokens + r['tokens']
            if r['val_loss'] is not None:
                self.curve.append((r['step'], tokens, seconds, r['val_loss']))
        self.steps, self.seconds, self.loss = rows[-1]['step'], seconds, rows[-1]['val_loss']
        self.ms = statistics.mean(r['step_ms'] for r in rows[1:])  # the first step takes memory
        self.times = [(r['step'], r['step_ms']) for r in rows[1:]]
        self.bytes = statistics.mean(r['comm_bytes']['dp'] for r in rows)  # all replicas together

    def loss_at(self, part):
        """Validation loss when that part of the steps is done: on the line between two validations."""
        step, before = part * self.steps, None
        for at, _, _, loss in self.curve:
            if at >= step:
                return before[1] + (loss - before[1]) * (step - before[0]) / (at - before[0]) if before else loss
            before = (at, loss)
        return self.loss

    def time_to(self, target):
        """Seconds of training until the line through the validations first comes down to target; None: never."""
        before = None
        for _, _, seconds, loss in self.curve:
            if loss <= target:
                if not before:
                    return seconds
                return before[0] + (seconds - before[0]) * (before[1] - target) / (before[1] - loss)
            before = (seconds, loss)
        return None


def load(o):
    """{mode: {seed: Run}} of the complete runs, which have the same options of the common part."""
    runs, steps = {}, set()
    for mode in o.modes:
        for seed in o.seeds:
            rows = read_log(os.path.join(o.out, f'{mode}-{seed}'))
            if rows:
                runs.setdefault(mode, {})[seed] = Run(rows)
                steps.add(rows[-1]['step'])
    if len(steps) > 1:
        stop(f'{o.out} holds runs of different lengths: {sorted(steps)} steps')
    return runs


def reach(runs, mode, part):
    """Seconds to sync's loss at that part of its run and how many times sooner than sync, of the seeds that get there;
    and how many seeds there are."""
    seeds = [s for s in runs[mode] if s in runs.get('sync', {})]
    seconds, faster = [], []
    for s in seeds:
        sync = runs['sync'][s]
        target = sync.loss_at(part)
        mine, its = runs[mode][s].time_to(target), sync.time_to(target)
        if mine is not None:
            seconds.append(mine)
            faster.append(its / mine)
    return seconds, faster, len(seeds)


def reach_text(runs, mode, part):
    seconds, faster, n = reach(runs, mode, part)
    if not n:
        return '-'
    if len(seconds) < n:
        return 'not reached' if not seconds else f'{len(seconds)} of {n} seeds'
    text = f'{statistics.mean(seconds):.0f} s'
    return text if mode == 'sync' else f'{text}, {with_spread(faster, 2)}x'


def talk_ms(run, mode):
    """Milliseconds that a round of H steps takes longer than H steps that only compute."""
    talks = [ms for step, ms in run.times if step % ROUND in TALKS[mode]]
    others = [ms for step, ms in run.times if step % ROUND not in TALKS[mode]]
    return len(TALKS[mode]) * (statistics.mean(talks) - statistics.mean(others))


def computation(runs, c):
    """Milliseconds of a step without communication: from DiLoCo's steps between its rounds, which ran in turn with the
    other modes; before there are any, what was measured at the beginning."""
    if 'diloco' not in runs:
        return c['computation_ms'], 'measured at the beginning'
    return (statistics.mean(ms for r in runs['diloco'].values() for step, ms in r.times if step % ROUND),
            "DiLoCo's steps between its rounds")


def caption(o, c, runs):
    some = next(iter(next(iter(runs.values())).values()))
    rates = {m: RATE[m] for m in runs}
    common = statistics.mode(rates.values())
    own = ''.join(f', {m} {lr:g}' for m, lr in rates.items() if lr != common)
    data = read_json(os.path.join(o.out, 'data.json')) or {}
    network = f'cables of {c["mbit"]:g} Mbit/s' if c['mbit'] else 'no network of their own: times say nothing'
    return (f'{c["parameters"]} parameters ({" ".join(MODEL)}), {data.get("name", "?")} as bytes, {REPLICAS} replicas, '
            f'{network}; '
            f'{some.steps} steps, {some.curve[-1][1] / 1e6:.2f} M tokens; seeds {", ".join(map(str, o.seeds))}. '
            f'Learning rate {common:g}{own}, a tenth of it at the end; chosen for sync by --sweep, 960 steps on '
            f'TinyShakespeare: '
            f'{", ".join(f"{x:g} gave {loss}" for x, loss in SWEPT.items())}.')


def table(runs):
    """Lines of Markdown."""
    head = ['', 'validation loss', 'ms a step', 'MB a step, each replica'] + [f'to sync\'s loss at {100 * p:.0f} %'
                                                                              for p in MARKS]
    out = ['| ' + ' | '.join(head) + ' |', '|---' * len(head) + '|']
    for mode in runs:
        r = runs[mode].values()
        note = '' if len(r) == max(len(x) for x in runs.values()) else f' ({len(r)} seeds)'
        row = [LABEL[mode] + note, with_spread((x.loss for x in r), 4), with_spread((x.ms for x in r), 1),
               f'{statistics.mean(x.bytes for x in r) / REPLICAS * 1e-6:.3f}'] + [reach_text(runs, mode, p)
                                                                                  for p in MARKS]
        out.append('| ' + ' | '.join(row) + ' |')
    return out


# ---- The verdicts ------------------------------------------------------------------------------------------------

def differ(runs, a, b):
    return compare(*([r.loss for r in runs.get(mode, {}).values()] for mode in (a, b)))


def hiding_claim(runs, c, mode, words):
    if not c['mbit'] or mode not in runs or 'sync' not in runs:
        return words, None, 'needs both modes on the network'
    base, _ = computation(runs, c)
    sync, own = (statistics.mean(r.ms for r in runs[m].values()) for m in ('sync', mode))
    hidden = (sync - own) / (sync - base)
    return (words, hidden >= 0.8, f'{own:.1f} ms a step, sync {sync:.1f}, computation {base:.1f}: {100 * hidden:.0f} % '
            f'of the '
            'communication hidden (80 % asked)')


def bytes_claim(runs, words):
    if 'diloco' not in runs or 'sync' not in runs:
        return words, None, 'needs both modes'
    sync, own = (statistics.mean(r.bytes for r in runs[m].values()) for m in ('sync', 'diloco'))
    ratio = sync / own if own else math.inf
    return words, ratio >= 0.95 * ROUND, f'{ratio:.1f} times fewer bytes (0.95 H asked)'


def streaming_claim(runs, c, words):
    if not c['mbit'] or 'diloco' not in runs or 'streaming' not in runs:
        return words, None, 'needs both modes on the network'
    d, s = (statistics.mean(talk_ms(r, m) for r in runs[m].values()) for m in ('diloco', 'streaming'))
    return (words, s <= 0.25 * d, f'in a round of {ROUND} steps it takes {s:.0f} ms longer than to compute them, '
            f'DiLoCo {d:.0f} ms '
            '(a quarter asked)')


def eager_claim(runs, words):
    near, far = differ(runs, 'eager', 'diloco'), differ(runs, 'late', 'diloco')
    versus = differ(runs, 'late', 'eager')
    if not near or not far or not versus:
        return words, None, 'needs two seeds of the three modes'
    return (words, versus.sign == 1 and near.delta <= 0.2 * far.delta,
            f'loss against DiLoCo {near.delta:+.4f}, a round late {far.delta:+.4f} (asked: a fifth of that, and a '
            'difference beyond the spread)')


def verdicts(runs, c):
    yield hiding_claim(runs, c, 'delayed', 'Overlap hides communication: gradient one step late')
    yield hiding_claim(runs, c, 'dc-s3gd-0', 'Overlap hides communication: DC-S3GD, lambda 0')
    yield hiding_claim(runs, c, 'dc-s3gd', 'Overlap hides communication: DC-S3GD, lambda 0.2')
    yield loss_claim(differ(runs, 'delayed', 'sync'), (1,),
                     'A gradient one step late without compensation hurts (ACCO)')
    yield loss_claim(differ(runs, 'dc-s3gd', 'sync'), (-1, 0), 'DC-S3GD loses nothing against sync')
    yield loss_claim(differ(runs, 'dc-s3gd', 'dc-s3gd-0'), (-1,), 'DC-S3GD: lambda 0.2 is better than 0')
    yield loss_claim(differ(runs, 'diloco', 'sync'), (-1, 0), f'DiLoCo with H = {ROUND} matches sync')
    yield bytes_claim(runs, f'DiLoCo communicates H = {ROUND} times less')
    yield loss_claim(differ(runs, 'streaming', 'diloco'), (-1, 0), 'Streaming DiLoCo is as good as DiLoCo')
    yield streaming_claim(runs, c, 'Streaming DiLoCo hides what is left of the communication')
    yield loss_claim(differ(runs, 'eager', 'diloco'), (-1, 0), 'Eager updates are as good as DiLoCo')
    yield eager_claim(runs, 'Eager updates stay close to DiLoCo, far from what comes a round late')


# ---- The picture -------------------------------------------------------------------------------------------------

def curves_of(found):
    """{mode: [((tokens in millions, seconds), mean, lowest, highest loss)]}"""
    curves = {}
    for mode, seeds in found.items():
        points = zip(*(r.curve for r in seeds.values()))
        curves[mode] = [((p[0][1] * 1e-6, statistics.mean(x[2] for x in p)), statistics.mean(x[3] for x in p),
                         min(x[3] for x in p), max(x[3] for x in p)) for p in points]
    return curves


def report(o):
    c, runs = read_json(os.path.join(o.out, 'calibration.json')), load(o)
    if not c or not runs:
        stop(f'there is no complete run in {o.out}')
    base, where = computation(runs, c)
    text = [caption(o, c, runs), ''] + table(runs) + ['']
    text.append(f'Mean ± standard deviation over seeds; x: times sooner than sync, seed by seed. Computation of a '
                f'step: {base:.1f} ms '
                f'({where}).')
    if c['mbit']:
        text[-1] += (f' At the beginning: computation {c["computation_ms"]:.1f} ms, '
                     f'synchronous step {c["sync_ms"]:.1f} ms.')
    text += ['', 'Verdicts. Two losses differ if they are further apart than twice the spread over seeds.', '']
    claims = list(verdicts(runs, c))
    text += verdict_lines(claims)
    fastest = [(statistics.mean(f), m) for m in runs if m != 'sync'
               for s, f, n in [reach(runs, m, 1.0)] if n and len(s) == n]
    if fastest:
        text.append(f'- Soonest at the loss with which sync ends: {LABEL[max(fastest)[1]]}, {max(fastest)[0]:.2f} '
                    f'times as soon as sync.')
    with open(os.path.join(o.out, 'report.md'), 'w', encoding='utf-8') as f:
        f.write('\n'.join(text) + '\n')
    write_json(os.path.join(o.out, 'results.json'), {
        'calibration': c, 'computation_ms': base,
        'claims': [{'claim': words, 'confirmed': holds, 'why': why} for words, holds, why in claims],
        'runs': {m: {s: {'val_loss': r.loss, 'ms': r.ms, 'seconds': r.seconds, 'bytes': r.bytes} for s, r in k.items()}
                 for m, k in runs.items()}})
    plot(os.path.join(o.out, 'loss.svg'), curves_of(runs), LABEL, COLOUR,
         [('against tokens', 'million tokens'), ('against time', 'seconds of training')], 'sync')
    print('\n' + '\n'.join(text) + f'\n\n{o.out}: report.md, loss.svg, results.json')


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0], epilog='modes: ' + ' '.join(NAMES))
    parser.add_argument('--data', help='text to train on, the same for all runs; 5 %% of it is validated on')
    parser.add_argument('--out', default='repro_async', help='folder of the results [repro_async]')
    parser.add_argument('--seeds', default='1,2,3', help='[1,2,3]')
    parser.add_argument('--modes', default=','.join(NAMES), help='some of the modes below, in that order')
    parser.add_argument('--steps', type=int, help=f'[{STEPS}]')
    parser.add_argument('--quick', action='store_true', help=f'does everything work? {2 * ROUND} steps, two seeds; the '
                        f'losses say nothing')
    parser.add_argument('--mbit', type=float, help='rate of the cables, instead of the one that follows from the '
                        'measured step')
    parser.add_argument('--no-network', action='store_true', help='no network of namespaces: needs no root, and times '
                        'say nothing')
    parser.add_argument('--sweep', nargs='?', const=','.join(NAMES), metavar='MODES',
                        help='learning rates, one seed, without the network')
    parser.add_argument('--report', action='store_true', help='train nothing')
    parser.add_argument('--trainer', metavar='PROGRAM', help="[this project's train_gpt]")
    o = parser.parse_args()
    o.out = os.path.abspath(o.out)
    o.trainer = os.path.abspath(o.trainer) if o.trainer else os.path.join(PROJECT, 'train_gpt')
    o.data = o.data and os.path.abspath(o.data)
    os.chdir(PROJECT)
    o.steps = o.steps or (2 * ROUND if o.quick else STEPS)
    o.seeds = [int(s) for s in ('1,2' if o.quick and o.seeds == '1,2,3' else o.seeds).split(',')]
    o.modes = [m for m in NAMES if m in o.modes.split(',')]
    swept = [m for m in NAMES if m in (o.sweep or '').split(',')]
    if not o.modes or (o.sweep and not swept):
        stop('no such mode; there are ' + ', '.join(NAMES))
    if o.steps % ROUND or o.steps < 2 * ROUND:
        stop(f'--steps: a multiple of {ROUND}, the steps of a round of DiLoCo, from {2 * ROUND} up')
    if o.report:
        return report(o)
    if not o.data or not glob.glob(o.data):
        stop('--data TEXT is missing' if not o.data else f'--data {o.data}: there is no such file')
    os.makedirs(o.out, exist_ok=True)
    write_json(os.path.join(o.out, 'data.json'), {'name': os.path.basename(o.data)})
    if o.sweep:
        return sweep(o, swept)
    failed = run_all(o, calibrate(o))
    report(o)
    if failed:
        stop('runs that failed: ' + ', '.join(failed) + '; the same command tries them again')


if __name__ == '__main__':
    guarded(main)
