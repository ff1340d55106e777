#!/usr/bin/env python3
"""How few bytes between replicas keep the loss? Synchronous training, DiLoCo, MuLoCo and SparseLoCo, three times each.

    frontier.py [--data TEXT] [--out FOLDER]   everything: learning rates, then 27 runs; a day on two cores
    frontier.py --quick [--out FOLDER]         does everything work? Two minutes; the losses say nothing
    frontier.py --report [--out FOLDER]        the table, the picture and the verdicts again, of what is there

dev/experiments/repro_async.sh frontier builds what this needs, fetches a text and calls it.

Model, text, learning rates, records and verdicts: tuned.py. Four replicas are four ranks, and each of them is a site;
a rank has one thread, and one run is made at a time. Bytes are those that all four ranks have sent to each other, as
counted in log.jsonl.

The target: within 1 % of the validation loss of synchronous AdamW, with at least 100 times fewer bytes.

The configurations: the synchronous optimizer, AdamW and Muon; DiLoCo (Douillard et al. 2023) with an outer step every
H = 32 steps, outer rate 0.7 and momentum 0.9; MuLoCo, DiLoCo with Muon (Therien et al. 2025, arXiv 2505.23725), with
32, 4 and 2 bits a number and error feedback; SparseLoCo (Sarfi et al. 2025, arXiv 2508.15706): of each 4096 numbers
the 128 or 32 largest, 2 bits each, outer rate 1, no momentum, an error that decays by 0.95."""
import sys

import runs
import tuned
from tuned import Configuration, best_rate, losses

CLOSE, FEWER = 1.0, 100  # the target: percent of the loss, times fewer bytes
PERIOD, QUICK_PERIOD = 32, 4  # H; the quick sweep has four steps
MUON, DILOCO = ['--optimizer', 'muon'], ['--dp-mode', 'diloco']
SPARSE = DILOCO + ['--outer-bits', '2', '--outer-top-k']

CONFIGURATIONS = [
    Configuration('adamw', 'AdamW, synchronous', '#444444', []),
    Configuration('muon', 'Muon, synchronous', '#999999', MUON),
    Configuration('diloco', 'DiLoCo, AdamW', '#2ca02c', DILOCO),
    Configuration('muloco', 'MuLoCo', '#1f77b4', MUON + DILOCO),
    Configuration('muloco-4', 'MuLoCo, 4 bits', '#17becf', MUON + DILOCO + ['--outer-bits', '4']),
    Configuration('muloco-2', 'MuLoCo, 2 bits', '#9467bd', MUON + DILOCO + ['--outer-bits', '2']),
    Configuration('sparse-128', 'SparseLoCo, 128 of 4096', '#d62728', SPARSE + ['128']),
    Configuration('sparse-32', 'SparseLoCo, 32 of 4096', '#ff9896', SPARSE + ['32']),
    Configuration('diloco-2', 'DiLoCo, AdamW, 2 bits', '#98df8a', DILOCO + ['--outer-bits', '2']),
]


def per_step(found, name):
    """Bytes of a step, of all replicas; None without a run."""
    of = [run.get('bytes', 0) / run['steps'] for run in found.get(name, {}).values()]
    return sum(of) / len(of) if of else None


def fewer(found, name):
    """Times fewer bytes than synchronous AdamW."""
    base, mine = per_step(found, 'adamw'), per_step(found, name)
    return base / mine if base and mine else None


def target(found, c):
    words = f'{c.label}: within {CLOSE:g} % of synchronous AdamW at {FEWER} times fewer bytes'
    got, times = runs.compare(losses(found, c.name), losses(found, 'adamw')), fewer(found, c.name)
    if not got or not times:
        return words, None, 'needs two seeds of both'
    return words, got.percent <= CLOSE and times >= FEWER, f'loss {got.percent:+.2f} %, {times:.0f} times fewer bytes'


def verdicts(found):
    targets = [target(found, c) for c in CONFIGURATIONS[2:]]
    yield from targets
    met = [holds for _, holds, _ in targets if holds is not None]
    yield ('The target is reached', any(met) if met else None, f'by {sum(met)} of {len(met)}' if met else 'no runs')
    for a, b, words in (('muon', 'adamw', 'Muon is as good as AdamW'),
                        ('muloco', 'muon', 'MuLoCo loses nothing to Muon'),
                        ('muloco-4', 'muloco', '4 bits lose nothing'), ('muloco-2', 'muloco', '2 bits lose nothing'),
                        ('muloco-2', 'muon', 'MuLoCo, 2 bits, loses nothing to Muon'),
                        ('sparse-128', 'diloco', 'SparseLoCo is as good as DiLoCo')):
        yield runs.loss_claim(runs.compare(losses(found, a), losses(found, b)), (-1, 0), words)


def table(o, found):
    """Lines of Markdown."""
    out = ['| configuration | learning rate | seeds | validation loss | against AdamW | kB a step and replica | times '
           'fewer |', '|---' * 7 + '|']
    for c in CONFIGURATIONS:
        mine = losses(found, c.name)
        if not mine:
            continue
        got, times = runs.compare(mine, losses(found, 'adamw')), fewer(found, c.name)
        beside = '' if c.name == 'adamw' else f'{got.percent:+.2f} %' if got else '-'
        out.append(f'| {c.label} | {best_rate(o, c.name):g} | {len(mine)} | {runs.with_spread(mine, 4)} | {beside} | '
                   f'{per_step(found, c.name) / Frontier.ranks * 1e-3:.4g} | {f"{times:.0f}" if times else "-"} |')
    return out


class Frontier(tuned.Experiment):
    configurations = CONFIGURATIONS
    groups = [['adamw', 'diloco', 'sparse-128'], ['muon', 'muloco', 'muloco-4', 'muloco-2'], ['sparse-32', 'diloco-2']]
    ranks, jobs = 4, 1
    out, made_by = 'repro_frontier', 'dev/experiments/repro_async.sh frontier'

    def verdicts(self, found, settings):
        return verdicts(found)

    def table(self, o, found):
        return table(o, found)

    def options(self, o, name):
        period = ['--local-steps', str(QUICK_PERIOD if o.quick else PERIOD)]
        return self.by_name[name].options + (period if 'diloco' in self.by_name[name].options else [])


def main():
    return tuned.main(Frontier(), __doc__.split('\n', maxsplit=1)[0])


if __name__ == '__main__':
    sys.exit(runs.guarded(main))
