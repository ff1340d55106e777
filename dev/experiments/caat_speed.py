#!/usr/bin/env python3
"""Is a CAAT-Net faster? Training steps, prefill and decoding on slow links, by the fraction P that is summed
(docs/caat.md).

    caat_speed.py            everything: t = 2, 4, 8, float32 and bf16, three rounds; root; most of an hour on two cores
    caat_speed.py --short    t = 2, P = 0.5, one link; a minute

The t tensor ranks are t nodes (net.py), each with one cable to a switch. How fast the cables are follows from the
machine: the ordinary model's time on unlimited cables is its computation, and its bytes are counted; then the cables
get the rates at which these bytes take 1/4, 1 and 4 times as long. Training and prefill send long vectors, in packets
of 65,000 bytes, which cost the processor least; decoding short ones, in packets of 576, so that the packet that a cable
lets through at once after a pause is short beside them.

All ranks share the machine's cores, with one thread each, and wait for each other in every sum: the time is computation
+ communication, and the prediction beside the measurement says just that. A round measures every configuration once, so
that what slows the machine for a while hits all; a figure is the median over rounds."""
import itertools, os, re, statistics

from harness import Experiment, UNLIMITED, on_network, step_ms

MODEL = '--arch gpt2 --layers 4 --hidden 768 --heads 8'.split()
OPTIONS = {
    'training': '--seq 64 --micro-batch 4 --global-batch 4 --steps 4 --eval-every 0 --sample-every 0 '
                '--data docs/ladder/1_one_process.c'.split(),
    'prefill': ['--seq', '256', '--max-new-tokens', '1', '--generate', 'a' * 256],
    'decode': ['--seq', '64', '--max-new-tokens', '16', '--top-k', '1', '--generate', 'a'],
}
MTU = {'training': 65000, 'prefill': 65000, 'decode': 576}
TRAINER = {'fp32': './train_gpt', 'bf16': 'build/bf16/train_gpt'}
# Precision, and in which one gradients are summed: what training adds to the question.
KINDS = [('fp32', 'fp32'), ('bf16', 'fp32'), ('bf16', 'same')]
# Open MPI 4 makes a nonblocking sum in place a binomial tree. 3: Rabenseifner's algorithm, which uses all cables at
# once, as blocking sums do.
os.environ['OMPI_MCA_coll_libnbc_iallreduce_algorithm'] = '3'


def read(phase, t):
    """Of a launch's output: milliseconds, and MB that all ranks send in a step, a prefill or for a token."""
    def read_training(text):
        total = re.search(r'^ +together +([\d.]+) ', text, re.M)
        return {'ms': step_ms(text), 'mb': float(total[1])} if total and step_ms(text) else None

    def read_generated(text):
        done = re.search(r'tokens read in ([\d.]+) s, (\d+) written in ([\d.]+) s', text)
        sent = re.search(r'^sent +(\d+) bytes', text, re.M)
        if not done or not sent:
            return None
        written = int(done[2])
        ms = float(done[1]) if phase == 'prefill' else float(done[3]) / (written - 1)
        return {'ms': 1e3 * ms, 'mb': int(sent[1]) * t * 1e-6 / written}

    return read_training if phase == 'training' else read_generated


class Case:
    """A phase, t and kind, whose cables' rates follow from the ordinary model's computation."""

    def __init__(self, e, phase, t, kind):
        self.e, self.phase, self.t, self.kind = e, phase, t, kind
        self.name = f'{phase}, t {t}, {kind[0]}' + (', gradients in bf16' if kind[1] == 'same' else '')
        self.computation = 1  # ms, until it is measured
        runs = [self.launch('calibration', i, None, None) for i in range(1 if e.short else 3)]
        self.computation, self.mb = statistics.median(r['ms'] for r in runs), runs[0]['mb']

    def launch(self, what, i, fraction, share):
        """share: communication / computation of the ordinary model; None: unlimited cables, as fraction None is the
        ordinary model."""
        mtu, mbit = MTU[self.phase], UNLIMITED
        if share:
            goodput = (mtu - 52) / (mtu + 14)
            mbit = self.mb * 8 / self.t / (self.computation * 1e-3 * share) / goodput
        command = on_network(f'fattree:{self.t},1', mbit, '--mtu', f'{mtu}', '--burst', f'{mtu + 14}')
        command += [TRAINER[self.kind[0]], *MODEL, '--tp', f'{self.t}', *OPTIONS[self.phase]]
        if fraction is not None:
            command += f'--caat-ranks {self.t} --caat-fraction {fraction:g} --caat-grad-dtype {self.kind[1]}'.split()
        key = f'{self.name}, P {fraction}, link {share}, {what} {i}'.replace('P None', 'ordinary').replace(
            'link None', 'unlimited')
        return self.e.result(key, command, read(self.phase, self.t))

    def times(self, fraction, share):
        return [self.launch('round', i, fraction, share)['ms'] for i in range(rounds(self.e))]

    def faster(self, fraction, share):
        """The ordinary model's time / this one's, round by round."""
        return [a / b for a, b in zip(self.times(None, share), self.times(fraction, share))]


def rounds(e):
    return 1 if e.short else 3


def show_case(case, fractions, shares):
    case.e.say(f'\n{case.name}, ms: measured (computation + bytes / rate), times the ordinary model\'s speed')
    rows = []
    for p in [None, *fractions]:
        mb, alone = case.launch('round', 0, p, None)['mb'], statistics.median(case.times(p, None))
        row = ['ordinary' if p is None else f'P = {p:g}', f'{mb:.3f}', f'{alone:.1f}']
        for share in shares:
            predicted = alone + mb / case.mb * case.computation * share
            row.append(f'{statistics.median(case.times(p, share)):.1f} ({predicted:.1f}) '
                       f'x{statistics.median(case.faster(p, share)):.2f}')
        rows.append(row)
    case.e.table(['', 'MB', 'unlimited', *(f'link {s:g}' for s in shares)], rows)


def main():
    e = Experiment(__doc__)
    e.build('PRECISION=fp32', 'train_gpt', 'build/bf16/train_gpt', 'build/tables')
    ts, shares = ([2], [1]) if e.short else ([2, 4, 8], [0.25, 1, 4])
    fractions = [0.5] if e.short else [1, 0.75, 0.5, 0.25, 0]
    cases = [Case(e, phase, t, kind) for phase in OPTIONS for t in ts for kind in KINDS
             if (phase == 'training' or kind[1] == 'fp32') and not (e.short and kind[0] == 'bf16')]
    for i, case, share, p in itertools.product(range(rounds(e)), cases, [None, *shares], [None, *fractions]):
        case.launch('round', i, p, share)
    for case in cases:
        show_case(case, fractions, shares)
    for case in cases:
        seen = [case.faster(0.5, share) for share in shares]
        e.verdict(f'P = 0.5 is faster in every round, {case.name}', min(map(min, seen)) > 1,
                  ', '.join(f'{statistics.median(s):.2f}' for s in seen) + ' times the ordinary model\'s speed')
    e.plot('caat_speed', [(phase, 'P', 'times the ordinary model\'s speed', {
        f't {c.t}, link {s:g}': (fractions, [statistics.median(c.faster(p, s)) for p in fractions], 'o-')
        for c in cases if c.phase == phase and c.kind[0] == 'fp32' for s in shares}) for phase in OPTIONS])
    e.close()


if __name__ == '__main__':
    main()
