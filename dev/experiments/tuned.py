"""tuned.py: what experiments share that compare the loss of a small model after the same tokens, in several
configurations: caat_quality.py, frontier.py. Such a program is an Experiment, given to main().

The model is a Llama of 1.67 M parameters, vocabulary 256: a text's bytes; in the trainer's precision. All
configurations have the same parameters, tokens (20 a parameter, each once), order of tokens and validation text. A rank
has one thread.

The learning rate. Each configuration has its own: of 1e-3, 2e-3, 4e-3 and 8e-3 the one with the lowest validation loss
of a run of an eighth of the steps and a seed of its own; while that is the lowest or the highest rate tried, half or
twice of it is tried too.

With --short every run has an eighth of the steps too, with the same learning rates, and is kept in
FOLDER/short/NAME-SEED: an eighth of the time, for what is compared beside the main comparison.

Interruptions. A run is kept in FOLDER/NAME-SEED once it is complete; one that is interrupted continues from its last
checkpoint (every five minutes). The same command goes on where it stopped. With --record FILE, what the report needs of
each complete run is kept in FILE too (a few kB), and a run that FILE has is not made again: so an experiment can be
spread over days and machines.

The verdicts. Two configurations differ where their mean losses are further apart than twice the standard deviation over
seeds (the root of the mean of the two variances). With three seeds that is a plain rule, not a proof."""
import argparse
import collections
import glob
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import time

import runs
from runs import PROJECT, duration, read_json, stop, write_json

MODEL = '--arch llama --layers 8 --hidden 128 --heads 8 --ffn 352 --seq 128'.split()
BATCH, STEPS = 32, 8192  # sequences in a step; 33.6 M tokens, 20.05 a parameter
QUICK_MODEL = '--arch llama --layers 2 --hidden 32 --heads 8 --ffn 64 --seq 32'.split()
QUICK_BATCH, QUICK_STEPS = 4, 32
EVALUATIONS, EVAL_SEQUENCES, QUICK_EVAL_SEQUENCES = 16, 1024, 16
RATES, SWEEP_SEED, SWEEP_PART = [1e-3, 2e-3, 4e-3, 8e-3], 100, 8
FIRST = 50  # steps whose losses a record has
TRIES = 3  # of a run that fails

# rate_of: the configuration whose learning rate it takes; one_seed: it is made with the first seed only; cost: of a
# step, times the first configuration's.
Configuration = collections.namedtuple('Configuration', 'name label colour options cost rate_of one_seed',
                                       defaults=(1.0, None, False))


class Experiment:
    """A program overrides what is its own; verdicts() and table() say what the report says."""
    configurations = []  # the first one is what the others are compared with
    groups = []  # names, which are run group by group
    ranks, jobs = 1, 2  # of a run; runs side by side
    out, made_by = '', ''  # default folder; the command that builds what is needed

    def __init__(self):
        self.by_name = {c.name: c for c in self.configurations}
        self.names = [c.name for c in self.configurations]

    def verdicts(self, found, settings):
        """(words, whether it holds or None, why)"""

    def table(self, o, found):
        """Lines of Markdown."""

    def options(self, o, name):
        return list(self.by_name[name].options)


# ---- The text ----------------------------------------------------------------------------------------------------

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


# ---- The runs ----------------------------------------------------------------------------------------------------

class Task:
    """A run of the trainer that is to be made."""

    def __init__(self, o, name, seed, lr, steps, folder, title):
        self.folder, self.title, self.steps = folder, title, steps
        self.record, self.commit = o.record, o.commit
        self.key = os.path.relpath(folder, o.out)
        self.cost = o.experiment.by_name[name].cost * steps
        self.options = o.model + ['--global-batch', str(o.batch), '--steps', str(steps), '--warmup', str(steps // 50),
                                  '--eval-every', str(max(1, steps // EVALUATIONS)), '--eval-sequences',
                                  str(o.eval_sequences), '--sample-every', '0', '--lr', f'{lr:g}', '--min-lr',
                                  f'{lr / 10:g}', '--seed', str(seed)] + o.experiment.options(o, name)
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
            ranks = o.experiment.ranks
            launcher = ['scripts/mpirun.sh', '-np', str(ranks)] if ranks > 1 else []
            self.process = runs.start(launcher + [o.trainer] + self.options + [
                '--out', self.part(), '--resume', '--save-every', '100', '--keep-last', '1'], f)

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
    """What the report needs of a log; bytes: between replicas, of all ranks together."""
    tokens, sent, curve = 0, 0, []
    for r in rows:
        tokens += r['tokens']
        sent += r.get('comm_bytes', {}).get('dp', 0)
        if r['val_loss'] is not None:
            curve.append([tokens, r['val_loss']])
    found = {'steps': len(rows), 'tokens': tokens, 'first': [r['loss'] for r in rows[:FIRST]], 'curve': curve}
    return dict(found, bytes=sent) if sent else found


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


def label(o, name):
    return o.experiment.by_name[name].label


def run_key(o, name, seed):
    return ('short/' if o.short else '') + f'{name}-{seed}'


def run_task(o, name, seed, lr):
    steps = o.steps // SWEEP_PART if o.short else o.steps
    return Task(o, name, seed, lr, steps, os.path.join(o.out, run_key(o, name, seed)), f'{label(o, name)}, seed {seed}')


def sweep_task(o, name, lr):
    return Task(o, name, SWEEP_SEED, lr, o.steps // SWEEP_PART, os.path.join(o.out, 'sweep', f'{name}-{lr:g}'),
                f'{label(o, name)}, lr {lr:g}')


def rate_of_key(key, name):
    """The learning rate of a run of the sweep; None if it is another configuration's, or not complete."""
    try:
        return float(key.removeprefix(f'sweep/{name}-'))
    except ValueError:
        return None


def swept(o, name):
    """{learning rate: loss} of what is complete."""
    keys = {os.path.relpath(f, o.out) for f in glob.glob(os.path.join(glob.escape(o.out), 'sweep', f'{name}-*'))}
    keys |= {k for k in recorded_runs(o) if k.startswith(f'sweep/{name}-')}
    rates = {k: rate_of_key(k, name) for k in keys}
    found = {rate: result(o, k) for k, rate in rates.items() if rate}
    return {rate: run['curve'][-1][1] for rate, run in found.items() if run}


def next_rate(losses):
    """Half or twice of the best rate if that is at the edge of those tried, else None."""
    best = min(losses, key=losses.get)
    if best == max(losses):
        return best * 2
    return best / 2 if best == min(losses) else None


def best_rate(o, name):
    losses = swept(o, o.experiment.by_name[name].rate_of or name)
    return min(losses, key=losses.get) if losses else None


def cost_after(o, group):
    """The cost of the groups that come after this one."""
    rest = [n for g in o.experiment.groups[group + 1:] for n in g if n in o.names]
    return sum(run_task(o, n, s, 1).cost for n in rest for s in seeds_of(o, n)) + sum(
        len(RATES) * sweep_task(o, n, 1).cost for n in rest if not o.experiment.by_name[n].rate_of)


def seeds_of(o, name):
    return o.seeds[:1] if o.experiment.by_name[name].one_seed else o.seeds


def run_all(o):
    for i, group in enumerate(o.experiment.groups):
        names = [n for n in group if n in o.names]
        tuned = [n for n in names if not o.experiment.by_name[n].rate_of]
        own = sum(run_task(o, n, s, 1).cost for n in names for s in seeds_of(o, n))
        tasks = [sweep_task(o, n, lr) for n in tuned for lr in RATES]
        while tasks:
            run_tasks(o, tasks, own + cost_after(o, i))
            rates = {n: next_rate(swept(o, n)) for n in tuned}
            tasks = [sweep_task(o, n, lr) for n, lr in rates.items() if lr]
            if o.quick:
                break
        for name in tuned:
            print(f'{label(o, name)}: learning rate {best_rate(o, name):g}', flush=True)
        run_tasks(o, [run_task(o, n, s, best_rate(o, n)) for s in o.seeds for n in names if s in seeds_of(o, n)],
                  cost_after(o, i))


# ---- The report --------------------------------------------------------------------------------------------------

def load(o):
    """{name: {seed: summary}} of the complete runs."""
    found = {}
    for name in o.experiment.names:
        for seed in o.seeds:
            run = result(o, run_key(o, name, seed))
            if run:
                found.setdefault(name, {})[seed] = run
    return found


def losses(found, name):
    return [run['curve'][-1][1] for run in found.get(name, {}).values()]


def sweep_table(o):
    rates = sorted({lr for name in o.experiment.names for lr in swept(o, name)})
    out = ['| validation loss, an eighth of the steps | ' + ' | '.join(f'{lr:g}' for lr in rates) + ' |',
           '|---' * (len(rates) + 1) + '|']
    for name in o.experiment.names:
        row = swept(o, name)
        if row:
            cells = [f'{row[lr]:.4f}' if lr in row else '' for lr in rates]
            out.append(f'| {label(o, name)} | ' + ' | '.join(cells) + ' |')
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
    folder = os.path.join(o.out, 'short') if o.short else o.out
    os.makedirs(folder, exist_ok=True)
    run = next(iter(next(iter(found.values())).values()))
    text = [f'{settings["parameters"]} parameters ({" ".join(settings["model"])}), {settings["precision"]}; text '
            f'{settings["text"]}; {run["steps"]} steps, {run["tokens"] / 1e6:.2f} M tokens; seeds '
            f'{", ".join(map(str, o.seeds))}. {origin(o, settings)}.', '']
    text += o.experiment.table(o, found) + ['', 'Mean ± standard deviation over seeds.', ''] + sweep_table(o)
    text += ['', 'Verdicts. Two losses differ if they are further apart than twice the spread over seeds.', '']
    claims = list(o.experiment.verdicts(found, settings))
    text += runs.verdict_lines(claims)
    with open(os.path.join(folder, 'report.md'), 'w', encoding='utf-8') as f:
        f.write('\n'.join(text) + '\n')
    write_json(os.path.join(folder, 'results.json'), {
        'settings': settings, 'claims': [{'claim': w, 'confirmed': h, 'why': why} for w, h, why in claims],
        'runs': {n: {s: run['curve'][-1][1] for s, run in k.items()} for n, k in found.items()},
        'rates': {n: swept(o, n) for n in o.experiment.names}})
    runs.plot(os.path.join(folder, 'loss.svg'), curves_of(found),
              {c.name: c.label for c in o.experiment.configurations},
              {c.name: c.colour for c in o.experiment.configurations}, [('', 'million tokens')],
              o.experiment.names[0])
    print('\n' + '\n'.join(text) + f'\n\n{folder}: report.md, loss.svg, results.json')


# ---- The command line --------------------------------------------------------------------------------------------

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
        stop(f'{o.trainer} does not run: {o.experiment.made_by} builds it')
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


def parse(experiment, description):
    parser = argparse.ArgumentParser(description=description, epilog='configurations: ' + ' '.join(experiment.names))
    parser.add_argument('--data', help='text to train on, at least 36 MB; 5 %% of it is validated on')
    parser.add_argument('--make-text', metavar='TREE', help="first write --data, from a tree of Linux's sources")
    parser.add_argument('--out', default=experiment.out, help=f'folder of the results [{experiment.out}]')
    parser.add_argument('--record', metavar='FILE', help='keeps complete runs, which are not made again')
    parser.add_argument('--seeds', help='[1,2,3; --quick: 1,2]')
    parser.add_argument('--only', default=','.join(experiment.names), help='some of the configurations below')
    parser.add_argument('--jobs', type=int, default=experiment.jobs, help=f'runs side by side [{experiment.jobs}]')
    parser.add_argument('--quick', action='store_true', help='does everything work? The losses say nothing')
    parser.add_argument('--short', action='store_true', help='runs of an eighth of the steps, kept in OUT/short')
    parser.add_argument('--report', action='store_true', help='train nothing')
    parser.add_argument('--trainer', default='train_gpt', metavar='PROGRAM', help='[train_gpt]')
    o = parser.parse_args()
    o.experiment = experiment
    o.out = os.path.abspath(o.out)
    o.data, o.record = o.data and os.path.abspath(o.data), o.record and os.path.abspath(o.record)
    o.trainer = os.path.abspath(os.path.join(PROJECT, o.trainer))
    o.seeds = [int(s) for s in (o.seeds or ('1,2' if o.quick else '1,2,3')).split(',')]
    o.names = [n for n in experiment.names if n in o.only.split(',')]
    o.model, o.batch, o.steps = (QUICK_MODEL, QUICK_BATCH, QUICK_STEPS) if o.quick else (MODEL, BATCH, STEPS)
    o.eval_sequences, o.poll = (QUICK_EVAL_SEQUENCES, 0.05) if o.quick else (EVAL_SEQUENCES, 5)
    if not o.names:
        stop('no such configuration; there are ' + ', '.join(experiment.names))
    return o


def main(experiment, description):
    o = parse(experiment, description)
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
