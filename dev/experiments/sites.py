#!/usr/bin/env python3
"""What does a slow link between two sites cost, in every --dp-mode? (docs/async_dp.md)

    sites.py            the default model, 65 steps in each mode, links of 25 and 100 Mbit/s; root; seven minutes
    sites.py --short    9 steps, one link; a minute

Two sites of two ranks each, which share memory (net.py), are joined by one link. A message between them takes
x = bytes / rate; a step without one computes for c, which DiLoCo's median step shows. The chapter says what a step then
takes in the mean: sync c + x, one step late max(c, x), every H steps c + x / H."""
import re, statistics

from harness import Experiment, GOODPUT, on_network

MODES = {'sync': '--sites 2', 'DC-S3GD': '--sites 2 --dp-mode dc-s3gd',
         'DiLoCo': '--sites 2 --dp-mode diloco --local-steps'}


def read(text):
    """Milliseconds of the steps but the first, which also connects; MB between sites, all ranks together, in a step."""
    ms = [float(x) for x in re.findall(r'^step .*?([\d.]+) ms', text, re.M)][1:]
    mb = re.search(r'between sites, mean .*?([\d.]+) +[\d.]+$', text, re.M)
    return {'ms': statistics.mean(ms), 'median': statistics.median(ms), 'mb': float(mb[1])} if ms and mb else None


def main():
    e = Experiment(__doc__)
    e.build('PRECISION=fp32', 'train_gpt', 'build/tables')
    h, steps = (4, 9) if e.short else (32, 65)
    options = f'--dp 4 --seq 64 --global-batch 16 --steps {steps} --eval-every 0 --sample-every 0'.split()
    for mbit in [100] if e.short else [25, 100]:
        found = {mode: e.result(f'{mode}, {mbit} Mbit/s', [
            *on_network('full:2', mbit, '--ranks', '2'), './train_gpt', *options,
            *(words + f' {h}' * (mode == 'DiLoCo')).split()], read) for mode, words in MODES.items()}
        c, mb = found['DiLoCo']['median'], found['sync']['mb']
        x = mb / 2 * 8 / (mbit * GOODPUT) * 1e3  # a site sends half of what both send
        expected = {'sync': c + x, 'DC-S3GD': max(c, x), 'DiLoCo': c + x / h}
        e.say(f'\nTwo sites of two ranks, {mbit} Mbit/s: c = {c:.0f} ms, x = {x:.0f} ms')
        e.table(['mode', 'MB between sites a step', 'ms a step', 'by the formula'], [
            [mode + f', H = {h}' * (mode == 'DiLoCo'), f'{r["mb"]:.3f}', f'{r["ms"]:.0f}', f'{expected[mode]:.0f}']
            for mode, r in found.items()])
    e.close()


if __name__ == '__main__':
    main()
