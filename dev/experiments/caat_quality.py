#!/usr/bin/env python3
"""Is a CAAT-Net as good at half the traffic? One small Llama, ordinary and with N streams, three times each.

    caat_quality.py [--data TEXT] [--out FOLDER]   everything: learning rates, then 22 runs; half a day on two cores
    caat_quality.py --quick [--out FOLDER]         does everything work? A minute; the losses say nothing
    caat_quality.py --report [--out FOLDER]        the table, the picture and the verdicts again, of what is there

dev/experiments/repro_caat.sh quality builds what this needs, fetches a text and calls it.

Model, text, learning rates, records and verdicts: tuned.py. A CAAT-Net's N streams are on one rank (--caat-ranks N):
which ranks compute them changes nothing but rounding, so that no network is needed. Two runs of one thread each run
side by side.

The configurations: ordinary; P = 0.5 and 0.25 with N = 4, the main comparison, which comes first; the same with N = 2
and 8; P = 1 with N = 4, where no channel is private: it has to be the ordinary model, so that one seed is enough and
the losses of the first steps are compared. It takes the ordinary model's learning rate.

caat_quality.json beside this program is the record of the project's own runs."""
import sys

import runs
import tuned
from tuned import Configuration, best_rate, losses

SAME = {'fp32': 1e-4, 'bf16': 2**-8}  # largest relative difference of losses with P = 1; bf16: one rounding


def streams(name, n, fraction, cost, colour, **more):
    return Configuration(name, f'N = {n}, P = {fraction:g}', colour,
                         ['--caat-ranks', str(n), '--caat-fraction', f'{fraction:g}'], cost, **more)


CONFIGURATIONS = [
    Configuration('ordinary', 'ordinary', '#444444', []),
    streams('n4-half', 4, 0.5, 1.3, '#1f77b4'),
    streams('n4-quarter', 4, 0.25, 1.3, '#17becf'),
    streams('n4-all', 4, 1.0, 1.3, '#999999', rate_of='ordinary', one_seed=True),
    streams('n2-half', 2, 0.5, 1.15, '#2ca02c'),
    streams('n2-quarter', 2, 0.25, 1.15, '#98df8a'),
    streams('n8-half', 8, 0.5, 1.75, '#d62728'),
    streams('n8-quarter', 8, 0.25, 1.75, '#ff9896'),
]
LABEL = {c.name: c.label for c in CONFIGURATIONS}


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
    for name, label, _, options, *_ in CONFIGURATIONS:
        mine, base = losses(found, name), losses(found, 'ordinary')
        if not mine:
            continue
        got = runs.compare(mine, base)
        beside = '' if name == 'ordinary' else f'{got.percent:+.2f} %' if got else '-'
        out.append(f'| {label} | {options[3] if options else 1} | {best_rate(o, name):g} | {len(mine)} | '
                   f'{runs.with_spread(mine, 4)} | {beside} |')
    return out


class Quality(tuned.Experiment):
    configurations = CONFIGURATIONS
    groups = [['ordinary', 'n4-half', 'n4-quarter'], ['n4-all'], ['n2-half', 'n2-quarter', 'n8-half', 'n8-quarter']]
    out, made_by = 'repro_caat_quality', 'dev/experiments/repro_caat.sh quality'

    def verdicts(self, found, settings):
        return verdicts(found, SAME[settings['precision']])

    def table(self, o, found):
        return table(o, found)


def main():
    return tuned.main(Quality(), __doc__.split('\n', maxsplit=1)[0])


if __name__ == '__main__':
    sys.exit(runs.guarded(main))
