#!/usr/bin/env python3
"""Is a CAAT-Net as good at half the traffic? One small Llama, ordinary and with N streams, three times each.

    caat_quality.py [--data TEXT] [--out FOLDER]   everything: learning rates, then 22 runs; half a day on two cores
    caat_quality.py --quick [--out FOLDER]         does everything work? A minute; the losses say nothing
    caat_quality.py --report [--out FOLDER]        the table, the picture and the verdicts again, of what is there

dev/experiments/repro_caat.sh quality builds what this needs, fetches a text and calls it.

The model is a Llama of 1.67 M parameters, vocabulary 256: a text's bytes; in the trainer's precision. All
configurations have the same parameters, tokens (20 a parameter, each once), order of tokens and validation text. A
CAAT-Net's N streams are on one rank (--caat-ranks N): which ranks compute them changes nothing but rounding, so that no
network is needed. Two runs of one thread each run side by side.

The configurations: ordinary; P = 0.5 and 0.25 with N = 4, the main comparison, which comes first; the same with N = 2
and 8; P = 1 with N = 4, where no channel is private: it has to be the ordinary model, so that one seed is enough and
the losses of the first steps are compared.

The learning rate. Each configuration has its own: of 1e-3, 2e-3, 4e-3 and 8e-3 the one with the lowest validation loss
of a run of an eighth of the steps and a seed of its own; while that is the lowest or the highest rate tried, half or
twice of it is tried too. P = 1 takes the ordinary model's.

Interruptions. A run is kept in FOLDER/NAME-SEED once it is complete; one that is interrupted continues from its last
checkpoint (every five minutes). The same command goes on where it stopped. With --record FILE, what the report needs of
each complete run is kept in FILE too (a few kB), and a run that FILE has is not made again: so the experiment can be
spread over days and machines. caat_quality.json beside this program is the record of the project's own runs.

The verdicts. Two configurations differ where their mean losses are further apart than twice the standard deviation over
seeds (the root of the mean of the two variances). With three seeds that is a plain rule, not a proof."""
import argparse
import glob
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time

import runs
from runs import PROJECT, duration, read_json, stop, write_json

MODEL = '--arch llama --layers 8 --hidden 128 --heads 8 --ffn 352 --seq 128'.split()
BATCH, STEPS = 32, 8192  # sequences in a step; 33.6 M tokens, 20.05 a parameter
QUICK_MODEL = '--arch llama --layers 2 --hidden 32 --heads 8 --ffn 64 --seq 32'.split()
QUICK_BATCH, QUICK_STEPS = 4, 32
EVALUATIONS, EVAL_SEQUENCES, QUICK_EVAL_SEQUENCES = 16, 1024, 16
RATES, SWEEP_SEED, SWEEP_PART = [1e-3, 2e-3, 4e-3, 8e-3], 100, 8
FIRST = 50  # steps in which P = 1 is compared with the ordinary model
SAME = {'fp32': 1e-4, 'bf16': 2**-8}  # largest relative difference of their losses; bf16: what one rounding changes
TRIES = 3  # of a run that fails

# name, what people read, N, P, colour
CONFIGURATIONS = [
    ('ordinary', 'ordinary', 0, 1.0, '#444444'),
    ('n4-half', 'N = 4, P = 0.5', 4, 0.5, '#1f77b4'),
    ('n4-quarter', 'N = 4, P = 0.25', 4, 0.25, '#17becf'),
    ('n4-all', 'N = 4, P = 1', 4, 1.0, '#999999'),
    ('n2-half', 'N = 2, P = 0.5', 2, 0.5, '#2ca02c'),
    ('n2-quarter', 'N = 2, P = 0.25', 2, 0.25, '#98df8a'),
    ('n8-half', 'N = 8, P = 0.5', 8, 0.5, '#d62728'),
    ('n8-quarter', 'N = 8, P = 0.25', 8, 0.25, '#ff9896'),
]
NAMES = [c[0] for c in CONFIGURATIONS]
LABEL, COLOUR = {c[0]: c[1] for c in CONFIGURATIONS}, {c[0]: c[4] for c in CONFIGURATIONS}
STREAMS = {c[0]: (['--caat-ranks', str(c[2]), '--caat-fraction', f'{c[3]:g}'] if c[2] else []) for c in CONFIGURATIONS}
GROUPS = [['ordinary', 'n4-half', 'n4-quarter'], ['n4-all'], ['n2-half', 'n2-quarter', 'n8-half', 'n8-quarter']]
COST = {'ordinary': 1.0, 'n2': 1.15, 'n4': 1.3, 'n8': 1.75}  # of a step, times the ordinary model's


# ------------------------------------------------------------------------------------------------------------------
# The text

FOLDERS = 'Documentation block crypto fs init ipc kernel lib mm net security sound'.split()
SIZE = 40_000_000  # bytes: 38 to train on, of which 33.6 are seen, and 2 to validate on


def make_text(tree, path):
    """Writes the C files, headers and documentation of a tree of Linux's sources, in the order of the hashes of their
    names, so that every part of the text is of all folders; SIZE bytes of it."""
    names = [os.path.relpath(os.path.join(where, name), tree) for folder in FOLDERS
             for where, _, files in os.walk(os.path.join(tree, folder)) for name in files
             if name.endswith(('.c', '.h', '.rst', '.txt'))]
    names.sort(key=lambda name: hashlib.sha256(name.encode()).digest())
    left = SIZE
    with open(path + '.tmp', 'wb') as out:
        for name in names:
            with open(os.path.join(tree, name), 'rb') as f:
                left -= out.write(f.read(left))
            if left == 0:
                break
    if left:
        stop(f'{tree} has too few sources: {left} bytes are missing of {SIZE}')
    os.replace(path + '.tmp', path)


def sha256(path):
    with open(path, 'rb') as f:
        return hashlib.sha256(f.read()).hexdigest()


# ------------------------------------------------------------------------------------------------------------------
# The runs

class Task:
    """A run of the trainer that is to be made."""

    def __init__(self, o, name, seed, lr, steps, folder, title):
        self.folder, self.title, self.steps = folder, title, steps
        self.record, self.commit = o.record, o.commit
        self.key = os.path.relpath(folder, o.out)
        key = name.split('-', maxsplit=1)[0]
        self.cost = COST[key] * steps  # in steps of the ordinary model
        self.options = o.model + ['--global-batch', str(o.batch), '--steps', str(steps), '--warmup', str(steps // 50),
                                  '--eval-every', str(max(1, steps // EVALUATIONS)), '--eval-sequences',
                                  str(o.eval_sequences), '--sample-every', '0', '--lr', f'{lr:g}', '--min-lr',
                                  f'{lr / 10:g}', '--seed', str(seed)] + STREAMS[name]
        self.recorded = ' '.join(self.options)  # without the text's path
        self.options += ['--data', o.data] if o.data else []
        self.process, self.output, self.tries = None, None, 0

    def part(self):
        return self.folder + '.part'

    def launch(self, o):
        """Begins it, or continues from its last checkpoint."""
        os.makedirs(self.part(), exist_ok=True)
        if read_json(os.path.join(self.part(), 'options.json')) != self.options:
            shutil.rmtree(self.part())
            os.makedirs(self.part())
            write_json(os.path.join(self.part(), 'options.json'), self.options)
        self.tries += 1
        with open(os.path.join(self.part(), 'output.txt'), 'a', encoding='utf-8') as f:
            self.process = runs.start([o.trainer] + self.options + [
                '--out', self.part(), '--resume', '--save-minutes', '5', '--keep-last', '1'], f)

    def done(self):
        """The part of its steps that is done."""
        rows = runs.read_log(self.part())
        return rows[-1]['step'] / self.steps if rows else 0

    def finish(self):
        """Whether it is complete, now that its process has ended."""
        runs.child.remove(self.process)
        rows = runs.read_log(self.part())
        if self.process.returncode != 0 or not rows or rows[-1]['step'] != self.steps:
            return False
        for checkpoint in glob.glob(os.path.join(self.part(), 'step_*')):
            shutil.rmtree(checkpoint)
        os.replace(self.part(), self.folder)
        if self.record:
            record = read_json(self.record)
            record['runs'][self.key] = dict(summary(rows), options=self.recorded, commit=self.commit,
                                            machine=machine(), date=time.strftime('%Y-%m-%d'))
            write_record(self.record, record)
        print(f'{self.title}: validation loss {rows[-1]["val_loss"]:.4f}', flush=True)
        return True


def summary(rows):
    """What the report needs of a log."""
    tokens, curve = 0, []
    for r in rows:
        tokens += r['tokens']
        if r['val_loss'] is not None:
            curve.append([tokens, r['val_loss']])
    return {'steps': len(rows), 'tokens': tokens, 'first': [r['loss'] for r in rows[:FIRST]], 'curve': curve}


def write_record(path, record):
    """One run a line, so that a diff shows what is new."""
    lines = [f'{json.dumps(key)}: {json.dumps(run)}' for key, run in record['runs'].items()]
    with open(path + '.tmp', 'w', encoding='utf-8') as f:
        f.write(f'{{"settings": {json.dumps(record["settings"])},\n"runs": {{\n' + ',\n'.join(lines) + '\n}}\n')
    os.replace(path + '.tmp', path)


def recorded_runs(o):
    return (o.record and read_json(o.record) or {'runs': {}})['runs']


def result(o, key):
    """The summary of a complete run, of its folder or of the record; None if it is not complete."""
    rows = runs.read_log(os.path.join(o.out, key))
    return summary(rows) if rows else recorded_runs(o).get(key)


def run_tasks(o, tasks, later):
    """Runs them, o.jobs at a time, in their order; later: the cost of what comes after them."""
    record = recorded_runs(o)
    todo = [t for t in tasks if record.get(t.key, {}).get('options') != t.recorded
            and not runs.is_complete(t.folder, t.options)]
    if not todo:
        return
    began, shown, running, failed, did = time.time(), time.time(), [], [], 0.0
    whole = sum(t.cost for t in todo)
    start_cost = sum(t.cost * t.done() for t in todo)
    while todo or running:
        while todo and len(running) < o.jobs:
            running.append(todo.pop(0))
            running[-1].launch(o)
        time.sleep(o.poll)
        for t in [t for t in running if t.process.poll() is not None]:
            running.remove(t)
            if t.finish():
                did += t.cost
            elif t.tries < TRIES:
                todo.insert(0, t)  # continues
            else:
                failed.append(t)
        if time.time() - shown > 300:
            shown = time.time()
            part = did + sum(t.cost * t.done() for t in running)
            rate = (part - start_cost) / (shown - began)
            left = duration((whole + later - part) / rate) if rate > 0 else '?'
            print(time.strftime('%H:%M '), '; '.join(f'{t.title} {100 * t.done():.0f} %' for t in running),
                  f'; {left} left', flush=True)
    if failed:
        stop('runs that failed: ' + ', '.join(f'{t.title} ({t.part()}/output.txt)' for t in failed) +
             '; the same command tries them again')


def run_task(o, name, seed, lr):
    return Task(o, name, seed, lr, o.steps, os.path.join(o.out, f'{name}-{seed}'), f'{LABEL[name]}, seed {seed}')


def sweep_task(o, name, lr):
    return Task(o, name, SWEEP_SEED, lr, o.steps // SWEEP_PART, os.path.join(o.out, 'sweep', f'{name}-{lr:g}'),
                f'{LABEL[name]}, lr {lr:g}')


def swept(o, name):
    """{learning rate: loss} of what is complete."""
    keys = {os.path.relpath(f, o.out) for f in glob.glob(os.path.join(glob.escape(o.out), 'sweep', f'{name}-*'))}
    keys |= {k for k in recorded_runs(o) if k.startswith(f'sweep/{name}-')}
    found = {k: result(o, k) for k in keys if not k.endswith('.part')}
    return {float(k.rsplit(f'{name}-', 1)[1]): run['curve'][-1][1] for k, run in found.items() if run}


def next_rate(losses):
    """Half or twice of the best rate if that is at the edge of those tried, else None."""
    best = min(losses, key=losses.get)
    if best == max(losses):
        return best * 2
    return best / 2 if best == min(losses) else None


def best_rate(o, name):
    losses = swept(o, 'ordinary' if name == 'n4-all' else name)
    return min(losses, key=losses.get) if losses else None


def cost_after(o, group):
    """The cost of the groups that come after this one."""
    rest = [n for g in GROUPS[group + 1:] for n in g if n in o.names]
    return sum(run_task(o, n, s, 1).cost for n in rest for s in seeds_of(o, n)) + sum(
        len(RATES) * sweep_task(o, n, 1).cost for n in rest if n != 'n4-all')


def seeds_of(o, name):
    return o.seeds[:1] if name == 'n4-all' else o.seeds


def run_all(o):
    for i, group in enumerate(GROUPS):
        names = [n for n in group if n in o.names]
        tuned = [n for n in names if n != 'n4-all']
        own = sum(run_task(o, n, s, 1).cost for n in names for s in seeds_of(o, n))
        tasks = [sweep_task(o, n, lr) for n in tuned for lr in RATES]
        while tasks:
            run_tasks(o, tasks, own + cost_after(o, i))
            rates = {n: next_rate(swept(o, n)) for n in tuned}
            tasks = [sweep_task(o, n, lr) for n, lr in rates.items() if lr]
            if o.quick:
                break
        for name in tuned:
            print(f'{LABEL[name]}: learning rate {best_rate(o, name):g}', flush=True)
        run_tasks(o, [run_task(o, n, s, best_rate(o, n)) for s in o.seeds for n in names if s in seeds_of(o, n)],
                  cost_after(o, i))


# ------------------------------------------------------------------------------------------------------------------
# The report

def load(o):
    """{name: {seed: summary}} of the complete runs."""
    found = {}
    for name in NAMES:
        for seed in o.seeds:
            run = result(o, f'{name}-{seed}')
            if run:
                found.setdefault(name, {})[seed] = run
    return found


def losses(found, name):
    return [run['curve'][-1][1] for run in found.get(name, {}).values()]


def same_function(found, same):
    words = 'P = 1 with N = 4 streams is the ordinary model'
    seeds = set(found.get('n4-all', {})) & set(found.get('ordinary', {}))
    if not seeds:
        return words, None, 'needs a seed of both'
    seed = min(seeds)
    pairs = list(zip(found['n4-all'][seed]['first'], found['ordinary'][seed]['first']))
    apart = max(abs(a / b - 1) for a, b in pairs)
    ends = [found[n][seed]['curve'][-1][1] for n in ('n4-all', 'ordinary')]
    return (words, apart <= same, f'losses of the first {len(pairs)} steps differ by {apart:.1e} at most ({same:.1g} '
            f'allowed), validation losses at the end by {ends[0] - ends[1]:+.4f}')


def verdicts(found, same):
    yield same_function(found, same)
    better = []
    for share, amount in (('half', 'half'), ('quarter', 'a quarter of')):
        for n in (2, 4, 8):
            name = f'n{n}-{share}'
            got = runs.compare(losses(found, name), losses(found, 'ordinary'))
            better += [(got, name)] if got else []
            yield runs.loss_claim(got, (-1, 0), f'No significant loss at {amount} the traffic, N = {n}')
    lower = [LABEL[name] for got, name in better if got.sign < 0]
    yield ('Sometimes a better loss at less traffic', bool(lower) if better else None,
           ('lower beyond the spread: ' + ('; '.join(lower) or 'none')) if better else 'needs two seeds of both')


def table(o, found):
    """Lines of Markdown."""
    out = ['| configuration | traffic of the blocks | learning rate | seeds | validation loss | against ordinary |',
           '|---' * 6 + '|']
    for name, label, _, fraction, _ in CONFIGURATIONS:
        mine, base = losses(found, name), losses(found, 'ordinary')
        if not mine:
            continue
        got = runs.compare(mine, base)
        beside = '' if name == 'ordinary' else f'{got.percent:+.2f} %' if got else '-'
        out.append(f'| {label} | {fraction:g} | {best_rate(o, name):g} | {len(mine)} | {runs.with_spread(mine, 4)} | '
                   f'{beside} |')
    return out


def sweep_table(o):
    rates = sorted({lr for name in NAMES for lr in swept(o, name)})
    out = ['| validation loss, an eighth of the steps | ' + ' | '.join(f'{lr:g}' for lr in rates) + ' |',
           '|---' * (len(rates) + 1) + '|']
    for name in NAMES:
        row = swept(o, name)
        if row:
            out.append(f'| {LABEL[name]} | ' + ' | '.join(f'{row[lr]:.4f}' if lr in row else '' for lr in rates) + ' |')
    return out


def curves_of(found):
    """{name: [((million tokens,), mean, lowest, highest loss)]}"""
    curves = {}
    for name, seeds in found.items():
        each = [[(tokens * 1e-6, loss) for tokens, loss in run['curve']] for run in seeds.values()]
        curves[name] = [((p[0][0],), sum(x[1] for x in p) / len(p), min(x[1] for x in p), max(x[1] for x in p))
                        for p in zip(*each)]
    return curves


def origin(o, settings):
    """Machine, date and commit of the runs."""
    known = list(recorded_runs(o).values()) or [settings]
    machines, dates, commits = (sorted({str(r[k]) for r in known}) for k in ('machine', 'date', 'commit'))
    return f'{"; ".join(machines)}; {" to ".join(dict.fromkeys((dates[0], dates[-1])))}, commit {", ".join(commits)}'


def report(o):
    begun = read_json(o.record or os.path.join(o.out, 'settings.json'))
    settings, found = begun and begun['settings'], load(o)
    if not settings or not found:
        stop(f'there is no complete run in {o.record or o.out}')
    os.makedirs(o.out, exist_ok=True)
    run = next(iter(next(iter(found.values())).values()))
    text = [f'{settings["parameters"]} parameters ({" ".join(settings["model"])}), {settings["precision"]}; text '
            f'{settings["text"]}; {run["steps"]} steps, {run["tokens"] / 1e6:.2f} M tokens; seeds '
            f'{", ".join(map(str, o.seeds))}. {origin(o, settings)}.', '']
    text += table(o, found) + ['', 'Mean ± standard deviation over seeds.', ''] + sweep_table(o)
    text += ['', 'Verdicts. Two losses differ if they are further apart than twice the spread over seeds.', '']
    claims = list(verdicts(found, SAME[settings['precision']]))
    text += runs.verdict_lines(claims)
    with open(os.path.join(o.out, 'report.md'), 'w', encoding='utf-8') as f:
        f.write('\n'.join(text) + '\n')
    write_json(os.path.join(o.out, 'results.json'), {
        'settings': settings, 'claims': [{'claim': w, 'confirmed': h, 'why': why} for w, h, why in claims],
        'runs': {n: {s: run['curve'][-1][1] for s, run in k.items()} for n, k in found.items()},
        'rates': {n: swept(o, n) for n in NAMES}})
    runs.plot(os.path.join(o.out, 'loss.svg'), curves_of(found), LABEL, COLOUR, [('', 'million tokens')], 'ordinary')
    print('\n' + '\n'.join(text) + f'\n\n{o.out}: report.md, loss.svg, results.json')


# ------------------------------------------------------------------------------------------------------------------
# The command line

def machine():
    with open('/proc/cpuinfo', encoding='utf-8') as f:
        model = re.search(r'model name\s*: (.*)', f.read())
    return f'{os.cpu_count()} cores of {model[1] if model else platform.machine()}'


def begin(o):
    """settings.json, begun or continued; a folder of other settings is refused."""
    try:
        version = subprocess.run([o.trainer, '--version'], capture_output=True, text=True, check=True).stdout
        said = subprocess.run([o.trainer] + o.model + ['--dry-run'] + (['--data', o.data] if o.data else []),
                              capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        stop(f'{o.trainer} does not run: dev/experiments/repro_caat.sh quality builds it')
    text = f'{os.path.basename(o.data)}, sha256 {sha256(o.data)[:16]}' if o.data else 'C headers of the machine'
    o.commit = version.split()[1].rstrip(',')
    settings = {'precision': version.split()[2].rstrip(','), 'model': o.model, 'batch': o.batch, 'steps': o.steps,
                'text': text, 'parameters': int(re.search(r'(\d+) parameters', said)[1])}
    os.makedirs(os.path.join(o.out, 'sweep'), exist_ok=True)
    if o.record:
        agree(o.record, settings, {'settings': settings, 'runs': {}})
    settings = dict(settings, machine=machine(), commit=o.commit)
    agree(os.path.join(o.out, 'settings.json'), settings, {'settings': dict(settings, date=time.strftime('%Y-%m-%d'))})


def agree(path, settings, new):
    """Writes the file if it is not there; it stops where the file was begun with other settings."""
    if not os.path.exists(path):
        return write_json(path, new)
    before = (read_json(path) or {}).get('settings', {})
    different = [k for k, v in settings.items() if before.get(k) != v]
    if different:
        stop(f'{path} was begun with other settings ({", ".join(different)}): give another --out or --record')
    return None


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split('\n', maxsplit=1)[0],
                                     epilog='configurations: ' + ' '.join(NAMES))
    parser.add_argument('--data', help='text to train on, at least 36 MB; 5 %% of it is validated on')
    parser.add_argument('--make-text', metavar='TREE', help="first write --data, from a tree of Linux's sources")
    parser.add_argument('--out', default='repro_caat_quality', help='folder of the results [repro_caat_quality]')
    parser.add_argument('--record', metavar='FILE', help='keeps complete runs, which are not made again')
    parser.add_argument('--seeds', help='[1,2,3; --quick: 1,2]')
    parser.add_argument('--only', default=','.join(NAMES), help='some of the configurations below')
    parser.add_argument('--jobs', type=int, default=2, help='runs side by side, of one thread each [2]')
    parser.add_argument('--quick', action='store_true', help='does everything work? The losses say nothing')
    parser.add_argument('--report', action='store_true', help='train nothing')
    parser.add_argument('--trainer', default='train_gpt', metavar='PROGRAM', help='[train_gpt]')
    o = parser.parse_args()
    o.out = os.path.abspath(o.out)
    o.data, o.record = o.data and os.path.abspath(o.data), o.record and os.path.abspath(o.record)
    o.trainer = os.path.abspath(os.path.join(PROJECT, o.trainer))
    o.seeds = [int(s) for s in (o.seeds or ('1,2' if o.quick else '1,2,3')).split(',')]
    o.names = [n for n in NAMES if n in o.only.split(',')]
    o.model, o.batch, o.steps = (QUICK_MODEL, QUICK_BATCH, QUICK_STEPS) if o.quick else (MODEL, BATCH, STEPS)
    o.eval_sequences, o.poll = (QUICK_EVAL_SEQUENCES, 0.05) if o.quick else (EVAL_SEQUENCES, 5)
    if not o.names:
        stop('no such configuration; there are ' + ', '.join(NAMES))
    return o


def main():
    o = parse()
    if o.report:
        return report(o)
    if o.make_text:
        if not o.data:
            stop('--make-text needs --data, the file to write')
        if not os.path.exists(o.data):
            make_text(o.make_text, o.data)
    if not o.quick and not o.data:
        stop('--data TEXT is missing')
    if o.data and not os.path.isfile(o.data):
        stop(f'--data {o.data}: there is no such file')
    if not o.quick and os.path.getsize(o.data) * 0.95 < BATCH * 128 * STEPS:
        stop(f'--data {o.data}: an epoch is shorter than {BATCH * 128 * STEPS} tokens')
    os.makedirs(o.out, exist_ok=True)
    os.chdir(PROJECT)
    begin(o)
    run_all(o)
    return report(o)


if __name__ == '__main__':
    sys.exit(runs.guarded(main))
