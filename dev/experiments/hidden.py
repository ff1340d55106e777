#!/usr/bin/env python3
"""How much of what late replicas send is hidden behind computation, and what a spare core does for it.

    hidden.py [--out FOLDER] [--rounds 3]    about ten minutes on two quiet cores
    hidden.py --quick                        does everything work? A minute
    hidden.py --report [--out FOLDER]        the table again, of what is there

dev/experiments/repro_async.sh hidden builds what this needs and calls it. Needs root (dev/experiments/net_torus.sh
makes the network) and two cores or more, of which it uses two.

The cores. Every replica computes with one thread; its progress thread (comm/comm_progress_thread.h) and the system's
part of TCP may use both cores. So the number of replicas says what is left for them:

    4 replicas, computing on both cores               nothing
    3: two compute on the first core, one on the second    half a core, as the second one waits for the first two
    2, computing on the first core                    a core

The network. Each replica has one cable to a switch, of the rate at which the all-reduce of a step's gradients,
2 (d-1)/d of the parameters from every replica, takes as long as their computation. What hides its communication can be
twice as fast as sync at most. Hidden: (sync - mode) / (sync - computation), of medians over the rounds of a launch's
median step. A round has each launch once, so that what slows the machine for a while hits all of them.

The price. Seconds that the threads other than the computing ones run, in seconds of the run: cores, of all replicas
together. What the system does in interrupts is not in it, and slows whichever thread is there."""
import argparse
import contextlib
import os
import re
import statistics
import sys
import threading

import runs
from runs import PROJECT, lines_of, read_json, start, stop, write_json

MODEL = '--arch gpt2 --layers 4 --hidden 96 --heads 3 --seq 64'.split()
TEXT = 'docs/ladder/1_one_process.c'  # its words do not matter
BATCH = 16  # sequences of a replica
SKIP = 8  # steps at the beginning of a launch
PLACES = {4: None, 3: [0, 0, 1], 2: [0, 0]}  # by replicas: the core on which each computes; None: either
SPARE = {4: 'none', 3: 'half a core', 2: 'a core'}
MODES = {'sync': [], 'delayed': ['--dp-mode', 'delayed', '--dc-lambda', '0'], 'dc-s3gd': ['--dp-mode', 'dc-s3gd']}
GOODPUT = 8948 / 9014  # of a full packet of net_torus.sh


def threads_of(trainer):
    """{process: its threads} of the running trainers."""
    found = {}
    for name in os.listdir('/proc'):
        with contextlib.suppress(OSError):
            if name.isdigit() and os.readlink(f'/proc/{name}/exe') == trainer:
                found[int(name)] = [int(t) for t in os.listdir(f'/proc/{name}/task')]
    return found


class Placement(threading.Thread):
    """Puts the computing threads of replicas on their cores, and notes what the other threads run."""

    def __init__(self, o, replicas):
        super().__init__()
        self.o, self.cores, self.replicas = o, PLACES[replicas], replicas
        self.over, self.others, self.before = threading.Event(), {}, set(threads_of(o.trainer))

    def run(self):
        while not self.over.wait(0.2):
            found = {p: t for p, t in threads_of(self.o.trainer).items() if p not in self.before}
            if len(found) == self.replicas:
                self.place(found)

    def place(self, found):
        for i, (process, threads) in enumerate(sorted(found.items())):
            for t in threads:
                with contextlib.suppress(OSError):
                    computes = t == process and self.cores
                    os.sched_setaffinity(t, {self.o.cores[self.cores[i]]} if computes else self.o.cores)
                    if t != process:
                        with open(f'/proc/{process}/task/{t}/stat', encoding='ascii') as f:
                            ticks = f.read().rsplit(')', 1)[1].split()[11:13]
                        self.others[t] = sum(map(int, ticks)) / os.sysconf('SC_CLK_TCK')


@contextlib.contextmanager
def placed(o, replicas):
    thread = Placement(o, replicas)
    thread.start()
    try:
        yield thread
    finally:
        thread.over.set()
        thread.join()


def step_ms(lines, part=1.0):
    times = [float(m[1]) for m in (re.match(r'step .*?([\d.]+) ms', line) for line in lines) if m]
    if len(times) <= SKIP:
        stop('the trainer does not run:\n    ' + '    '.join(lines[-5:]))
    times = times[SKIP:max(SKIP + 1, int(part * len(times)))]
    return statistics.median(times), sum(times) * 1e-3


def options(o, replicas):
    return [o.trainer] + MODEL + ['--global-batch', str(BATCH * replicas), '--steps', str(o.steps), '--eval-every', '0',
                                  '--sample-every', '0', '--data', TEXT]


def computation(o, replicas):
    """Milliseconds of a step of the slowest replica while the others compute, and the number of parameters."""
    with placed(o, replicas):
        many = [start(options(o, 1)) for _ in range(replicas)]
        written = [p.communicate()[0].splitlines() for p in many]
        runs.child.clear()
    return (max(step_ms(w, 5 / 6)[0] for w in written),  # at the end some are alone
            int(re.search(r'(\d+) parameters', '\n'.join(written[0]))[1]))


def launch(o, replicas, mbit, mode):
    """Milliseconds of a step, and cores that the other threads use."""
    with placed(o, replicas) as place:
        status, lines = lines_of(runs.on_star(os.path.join(o.out, 'network.txt'), replicas, mbit) +
                                 options(o, replicas) + ['--dp', str(replicas), '--allreduce', 'ring'] + MODES[mode])
    if status != 0:
        stop('the trainer does not run on the network:\n    ' + '    '.join(lines[-5:]))
    ms, seconds = step_ms(lines)
    return {'ms': ms, 'cores': sum(place.others.values()) / seconds}


def measure(o, replicas):
    found = {'computation': [], **{mode: [] for mode in MODES}}
    first, parameters = zip(*(computation(o, replicas) for _ in range(3)))
    ms, parameters = statistics.median(first), parameters[0]
    mbit = float(f'{2 * (replicas - 1) / replicas * parameters * 32 / (ms * 1e-3) / GOODPUT * 1e-6:.3g}')
    for i in range(o.rounds):
        found['computation'].append(computation(o, replicas)[0])
        for mode in MODES:
            found[mode].append(launch(o, replicas, mbit, mode))
        print(f'{replicas} replicas, round {i + 1} of {o.rounds}: computation {found["computation"][-1]:.1f} ms, ' +
              ', '.join(f'{mode} {found[mode][-1]["ms"]:.1f}' for mode in MODES), flush=True)
    return {'mbit': mbit, 'parameters': parameters, **found}


def median_of(rows, key='ms'):
    return statistics.median(r[key] for r in rows)


def table(results):
    """Lines of Markdown."""
    yield '| replicas | to spare | computation | sync | ' + ' | '.join(
        f'{mode}: ms, hidden, threads' for mode in list(MODES)[1:]) + ' |'
    yield '|---' * 6 + '|'
    for replicas, r in results['replicas'].items():
        base, sync = statistics.median(r['computation']), median_of(r['sync'])
        cells = [replicas, SPARE[int(replicas)], f'{base:.1f} ms', f'{sync:.1f} ms']
        for mode in list(MODES)[1:]:
            ms = median_of(r[mode])
            hidden = f'{100 * (sync - ms) / (sync - base):.0f} %' if sync > base else '-'
            cells.append(f'{ms:.1f} ms, {hidden}, {median_of(r[mode], "cores"):.2f} cores')
        yield '| ' + ' | '.join(cells) + ' |'


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split('\n', maxsplit=1)[0])
    parser.add_argument('--out', default='repro_hidden', help='folder of the results [repro_hidden]')
    parser.add_argument('--rounds', type=int, default=3, help='launches of each mode [3]')
    parser.add_argument('--steps', type=int, default=80, help='of a launch [80]')
    parser.add_argument('--quick', action='store_true', help='one short round; the times say nothing')
    parser.add_argument('--report', action='store_true', help='measure nothing')
    parser.add_argument('--trainer', default='train_gpt', metavar='PROGRAM', help='[train_gpt]')
    o = parser.parse_args()
    o.out, o.trainer = os.path.abspath(o.out), os.path.realpath(os.path.join(PROJECT, o.trainer))
    o.cores = sorted(os.sched_getaffinity(0))[:2]
    if o.quick:
        o.rounds, o.steps = 1, 2 * SKIP
    if o.rounds < 1 or o.steps <= SKIP + 1:
        stop(f'--rounds is at least 1, --steps more than {SKIP + 1}')
    return o


def main():
    o = parse()
    path = os.path.join(o.out, 'results.json')
    if not o.report:
        if len(o.cores) < 2:
            stop('it needs two cores')
        if not os.access(o.trainer, os.X_OK):
            stop(f'{o.trainer} is not there: make PRECISION=fp32 train_gpt')
        os.makedirs(o.out, exist_ok=True)
        os.chdir(PROJECT)
        os.sched_setaffinity(0, o.cores)
        write_json(path, {'replicas': {str(n): measure(o, n) for n in PLACES}})
    results = read_json(path) or stop(f'there is no {path}')
    print('\n' + '\n'.join(table(results)))


if __name__ == '__main__':
    sys.exit(runs.guarded(main))
