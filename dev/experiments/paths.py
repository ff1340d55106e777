#!/usr/bin/env python3
"""Several slow paths between two sites (dev/experiments/net_sites.sh), used at once: by Multipath TCP, and by Open
MPI's own striping.

    dev/experiments/paths.py [--quick] [transfer] [train] [cut]        all three if none is said
    dev/experiments/paths.py train --options "--sites 2 --dp-mode diloco"       more options for the trainer

transfer   a sum of 16 MiB over two ranks, one in each site
train      steps of a GPT of 3.2 M parameters, 12.9 MB of gradients a step, one replica in each site
cut        the same run, with a path that drops everything from step 3 to 6: the same bits? how long does it wait?
           An undisturbed run beside it. A run that makes no step within 20 seconds of a cut is ended.

transfer and train: milliseconds, medians over the rounds; how many times as fast as one path; what each path carried,
as a part of all. Needs root, Linux with MPTCP, mptcpize, Open MPI 4, and train_gpt and build/bench_collective (make all
build_benches). Takes about 12 minutes; --quick four."""
import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

SCRIPT = 'dev/experiments/net_sites.sh'
MBIT = 25
NETWORKS = [('one', '1', f'{MBIT}'), ('mptcp', '2', f'{MBIT}'), ('mptcp', '4', f'{MBIT}'), ('mpi', '2', f'{MBIT}'),
            ('mpi', '4', f'{MBIT}'), ('mptcp', '2', '40,10'), ('mpi', '2', '40,10')]
NAMES = {'one': 'TCP', 'mptcp': 'Multipath TCP', 'mpi': "Open MPI's striping"}
MODEL = ('--layers 4 --hidden 256 --heads 4 --seq 32 --global-batch 2 --micro-batch 1 --dp 2 --warmup 2 --eval-every 0 '
         '--sample-every 0').split()
PATIENCE = 20  # seconds without a step, after which a run counts as hanging


def environment(by):
    return dict(os.environ, NET_PATHS_BY=by, OMP_NUM_THREADS='1')


def sites(by, *arguments):
    return subprocess.run([SCRIPT, *arguments], check=True, stdout=subprocess.PIPE, text=True,
                          env=environment(by)).stdout


def carried(by):
    """Bytes that every path has carried, both directions."""
    total = {}
    for line in sites(by, 'bytes').splitlines():
        _, _, path, count = map(int, line.split())
        total[path] = total.get(path, 0) + count
    return [total[path] for path in sorted(total)]


class Network:
    """The sites are up within a "with", whatever happens."""

    def __init__(self, by, paths, mbit):
        self.by, self.shape = by, ('2', '1', paths, mbit)

    def __enter__(self):
        sites(self.by, 'up', *self.shape)

    def __exit__(self, *_):
        sites(self.by, 'down')


def transfer(by, rounds):
    out = sites(by, 'run', 'build/bench_collective', '--kib', '16384', '--rounds', str(rounds), '--nap', '50',
                '--one-clock',
                '--algorithms', 'native')
    return float(re.search(r'native +([\d.]+) ms', out)[1])


def train(by, steps, options):
    out = sites(by, 'run', './train_gpt', *MODEL, '--steps', str(steps), *options)
    return statistics.median(float(x) for x in re.findall(r'([\d.]+) ms', out)[1:])  # the first one also connects


def table(title, measure, rounds):
    """measure(by) on every network, `rounds` times in turn: what disturbs the machine meets all of them."""
    times, shares = {n: [] for n in NETWORKS}, {n: [] for n in NETWORKS}
    for i in range(rounds):
        for n in NETWORKS:
            print(f'{title}: round {i + 1} of {rounds}, {" ".join(n)}', file=sys.stderr, flush=True)
            with Network(*n):
                times[n].append(measure(n[0]))
                shares[n] = carried(n[0])
    print(f'\n{title}\n{"":22}{"Mbit/s":>14}{"ms":>9}{"least":>9}{"most":>9}{"faster":>9}   carried by each path, %')
    one = statistics.median(times[NETWORKS[0]])
    for n in NETWORKS:
        by, paths, mbit = n
        ms = statistics.median(times[n])
        rates = mbit if ',' in mbit else f'{paths} x {mbit}'
        print(f'{NAMES[by]:22}{rates:>14}{ms:9.0f}{min(times[n]):9.0f}{max(times[n]):9.0f}'
              f'{one / ms:8.2f}x   ' + ' '.join(f'{100 * b / sum(shares[n]):.1f}' for b in shares[n]), flush=True)


def watched(by, path, out, options, how='drop'):
    """A run of ten steps; path (None: none) is cut after the second and heals after the sixth. Returns the times at
    which steps were printed, that of the cut (or None), and whether the run went on by itself. A run that hangs is
    given its path back, and PATIENCE again: is that enough?"""
    command = [SCRIPT, 'run', './train_gpt', *MODEL, '--steps', '10', '--out', out, *options]
    cutting = dict(environment(by), NET_CUT=how)
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=cutting)
    said, times = [], []
    aside = threading.Thread(target=lambda: said.append(run.stderr.read()))
    aside.start()

    def read():
        for line in run.stdout:
            if line.startswith('step '):
                times.append(time.monotonic())

    reader = threading.Thread(target=read)
    reader.start()
    cut = healed = None
    verdict, last = 'went on', time.monotonic()
    seen = 0
    while reader.is_alive():
        time.sleep(0.01)
        if len(times) > seen:
            seen, last = len(times), time.monotonic()
        if path is not None and cut is None and seen >= 2:
            time.sleep(0.3)  # into the sum of the third step
            subprocess.run([SCRIPT, 'cut', path], check=True, env=cutting)
            cut = last = time.monotonic()
        late = time.monotonic() - last > PATIENCE
        if cut and not healed and (seen >= 6 or late):
            subprocess.run([SCRIPT, 'heal', path], check=True, env=cutting)
            verdict = 'waited for the path' if late else verdict
            healed = last = time.monotonic()
        elif late and (healed or path is None):
            verdict = 'hung, even with the path back'
            run.send_signal(signal.SIGTERM)
            break
    reader.join()
    aside.join()
    if run.wait() != 0 and verdict != 'hung, even with the path back':
        verdict = 'died: ' + (said[0].strip().splitlines() or ['?'])[0]
    return times, cut, healed, verdict


def losses(folder):
    try:
        with open(folder + '/log.jsonl', encoding='utf-8') as f:
            return [(x['step'], x['loss'], x['grad_norm']) for x in map(json.loads, f)]
    except FileNotFoundError:
        return []


def cut(options, quick):
    print(f'\na path of {MBIT} Mbit/s is cut during step 3 of 10 and heals after step 6, or after {PATIENCE} s without '
          f'a step')
    print(f'{"":22}{"paths":>6} {"cut":>5} {"how":>5}{"usual ms":>10}{"while cut":>11}{"longest":>9}{"after":>8}   ')
    with tempfile.TemporaryDirectory() as work:
        undisturbed = None
        cases = [('mptcp', '4', None, 'drop'), ('mptcp', '4', '1', 'drop'), ('mptcp', '4', '0', 'drop'),
                 ('mptcp', '4', '1', 'down'), ('mpi', '4', '1', 'drop'), ('one', '1', '0', 'drop')]
        for i, (by, paths, path, how) in enumerate(cases if not quick else cases[:2] + cases[4:]):
            folder = f'{work}/{i}'
            with Network(by, paths, str(MBIT)):
                times, when, healed, verdict = watched(by, path, folder, options, how)
            steps = [1e3 * (b - a) for a, b in zip(times, times[1:])]
            got = losses(folder)
            undisturbed = undisturbed or got
            # a step's time is that of its end
            parts = ([m for m, t in zip(steps, times[1:]) if when and (t < when) == early
                      and (early or not healed or t < healed)]
                     for early in (True, False))
            before, during = ([m for m in steps], []) if path is None else parts
            after = [m for m, t in zip(steps, times[1:]) if healed and t > healed][2:]
            cells = [f'{statistics.median(x):.0f}' if x else '-' for x in (before, during[1:], after)]
            longest = f'{max(steps):.0f}' if steps else '-'
            same = 'the same bits' if got == undisturbed and len(got) == 10 else f'{len(got)} steps, ' + (
                'the same bits' if got == undisturbed[:len(got)] else 'OTHER BITS')
            print(f'{NAMES[by]:22}{paths:>6} {path or "none":>5} '
                  f'{how if path else "":>5}{cells[0]:>10}{cells[1]:>11}{longest:>9}'
                  f'{cells[2]:>8}   {verdict}; {same}', flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--quick', action='store_true', help='one round of each, and fewer cases')
    parser.add_argument('--options', default='', help='more options for train_gpt')
    parser.add_argument('what', nargs='*', default=['transfer', 'train', 'cut'])
    o = parser.parse_args()
    what, rounds = o.what, 1 if o.quick else 3
    if not set(what) <= {'transfer', 'train', 'cut'}:
        parser.error('what to measure is transfer, train or cut')
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the network goes down
    if 'transfer' in what:
        table('a sum of 16 MiB over two ranks', lambda by: transfer(by, 3 if o.quick else 5), rounds)
    if 'train' in what:
        table('a step of the trainer, 12.9 MB of gradients', lambda by: train(by, 4 if o.quick else 6,
                                                                              o.options.split()), rounds)
    if 'cut' in what:
        cut(o.options.split(), o.quick)


main()
