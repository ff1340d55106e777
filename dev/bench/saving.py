#!/usr/bin/env python3
"""What does a checkpoint every ten steps cost a run?

    dev/bench/saving.py [--rounds 3] [--every 10] [--sizes 0.5M,6M,25M] [--ranks 1,2,4] [--out FOLDER]

Each run is made without saving and with it, in turn, as often as --rounds says; FOLDER is on the disk to measure. Of
both the steps' times come from log.jsonl, and how long a save blocked training from what the trainer prints. From save
to save

    cost = (the steps' times + the time it was blocked) / (as many steps' times without saving) - 1

so what the writing thread takes away from the steps beside it counts as well. The table has medians over all intervals
of all rounds; with one thread a rank, and cores that are all busy, the thread has no core of its own. The machine has
to be quiet: the spread between the rounds of the same kind is printed, and a cost below it says nothing."""
import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile

PROJECT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SIZES = {
    '0.5M': '--layers 4 --hidden 96 --heads 4',
    '6M': '--layers 6 --hidden 288 --heads 6',
    '25M': '--layers 8 --hidden 512 --heads 8',
}
MESHES = {1: '', 2: '--tp 2', 4: '--tp 2 --pp 2'}
COMMON = '--seq 128 --micro-batch 2 --global-batch 8 --eval-every 0 --sample-every 0'
STEPS = {'0.5M': 201, '6M': 81, '25M': 41}


def run(size, ranks, steps, every, text, out):
    """The steps' times in ms; [(step, ms that training was blocked, ms until it was on the disk)]."""
    shutil.rmtree(out, ignore_errors=True)
    options = (f'{COMMON} {SIZES[size]} {MESHES[ranks]} --steps {steps} --save-every {every} --keep-last 1 '
               f'--data {text} --out {out}')
    command = [os.path.join(PROJECT, 'train_gpt'), *options.split()]
    if ranks > 1:
        command = [os.path.join(PROJECT, 'scripts', 'mpirun.sh'), '-np', str(ranks), *command]
    said = subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
                          errors='replace').stdout
    times = [json.loads(line)['step_ms'] for line in open(os.path.join(out, 'log.jsonl'))]
    saved = r'^saved .*step_(\d+): blocked training ([\d.]+) ms, on the disk after ([\d.]+) ms'
    saves = [(int(m[1]), float(m[2]), float(m[3])) for m in re.finditer(saved, said, re.M)]
    shutil.rmtree(out, ignore_errors=True)
    return times, saves[:-1]  # the last one has nothing beside it


def measure(size, ranks, o, text, out):
    """A row."""
    without, within, still, disk, rounds = [], [], [], [], []
    for _ in range(o.rounds):
        plain = run(size, ranks, STEPS[size], 0, text, out)[0][o.every:]
        times, saves = run(size, ranks, STEPS[size], o.every, text, out)
        rounds.append(statistics.median(plain))
        without += plain
        for step, stood, until in saves:
            after = times[step:step + o.every]  # the steps while, and after, it is written
            if len(after) == o.every:
                within.append((sum(after) + stood) / o.every)
            still.append(stood)
            disk.append(until)
    step = statistics.median(without)
    cost = statistics.median(within) / step - 1
    blocked = statistics.median(still)
    return (f'| {size} | {ranks} | {step:.1f} | {blocked:.1f} | {100 * blocked / step / o.every:.1f} % | '
            f'{statistics.median(disk):.0f} | {100 * cost:+.1f} % | {100 * (max(rounds) / min(rounds) - 1):.1f} % |')


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--rounds', type=int, default=3)
    parser.add_argument('--every', type=int, default=10)
    parser.add_argument('--sizes', default=','.join(SIZES))
    parser.add_argument('--ranks', default=','.join(map(str, MESHES)))
    parser.add_argument('--out', default='')
    o = parser.parse_args()
    print(f'load before: {os.getloadavg()[0]:.1f}\n\n'
          f'| parameters | ranks | step, ms | blocked, ms | of {o.every} steps | on the disk after, ms | '
          f'cost of saving every {o.every} steps | rounds apart |\n'
          '|---|---|---|---|---|---|---|---|')
    with tempfile.TemporaryDirectory(dir=o.out or None) as folder:
        text = os.path.join(folder, 'text.txt')
        with open(text, 'w') as f:
            f.write(' '.join(map(str, range(60000))))
        for size in o.sizes.split(','):
            for ranks in map(int, o.ranks.split(',')):
                print(measure(size, ranks, o, text, os.path.join(folder, 'run')), flush=True)
    return 0


if __name__ == '__main__':
    sys.exit(main())
