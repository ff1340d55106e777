#!/usr/bin/env python3
"""Does asynchronous data parallelism keep its promises? A small GPT on a slow network, in every --dp-mode
(docs/async_dp.md).

    async_dp.py --data tinyshakespeare.txt    a sweep of learning rates and three seeds; root; an hour on two cores
    async_dp.py --short                       a few steps on the headers of the machine; a minute

Four replicas are four nodes, each with one cable to a switch (net.py). First the computation of a step is measured, on
unlimited cables; then they get the rate at which the all-reduce of a step's gradients, 2 (d-1)/d of the parameters from
every replica, takes just as long. A synchronous step then takes about twice its computation, and what hides its
communication can be twice as fast at most.

All runs see the same tokens in the same order and validate on the same text; each mode has the best of four or more
learning rates, by one run with another seed and without the network. Runs of one seed follow each other, so that what
slows the machine for a while hits all modes. Verdict: two losses differ if their means are further apart than twice the
standard deviation over seeds; with three seeds that is a plain rule, not a proof."""
import os, re, statistics

from harness import Experiment, GOODPUT, UNLIMITED, best_rate, on_network, spread, step_ms

MODEL = '--arch gpt2 --layers 4 --hidden 96 --heads 3 --seq 64 --global-batch 64 --dp 4 --allreduce ring'.split()
MODES = {'synchronous': '', 'DC-S3GD, lambda 0': '--dp-mode dc-s3gd --dc-lambda 0',
         'DC-S3GD, lambda 0.2': '--dp-mode dc-s3gd --dc-lambda 0.2',
         'DiLoCo, H = 32': '--dp-mode diloco --local-steps 32'}
RATES, SWEEP_SEED = [2e-3, 4e-3, 8e-3, 1.6e-2], 100
MPI = ['scripts/mpirun.sh', '-np', '4', 'env', 'OMP_NUM_THREADS=1']


def read(text):
    """Last validation loss, milliseconds of a step, MB that all replicas send in a step."""
    losses = re.findall(r'^step .*? val ([\d.]+)', text, re.M)
    mb = re.search(r'(?:\(d-1\)/d of the parameters|between sites, mean .*?) +([\d.]+) +[\d.]+$', text, re.M)
    if not losses or not mb:
        return None
    ms = [float(x) for x in re.findall(r'^step .*?([\d.]+) ms', text, re.M)][1:]
    return {'loss': float(losses[-1]), 'ms': statistics.mean(ms), 'mb': float(mb[1])}


class AsyncDP(Experiment):
    def __init__(self):
        super().__init__(__doc__, lambda parser: parser.add_argument('--data', help='the text'))
        steps = 32 if self.short else 960
        data = ['--data', os.path.abspath(self.options.data)] if self.options.data else []
        self.command = ['./train_gpt', *MODEL, *data, '--sample-every', '0']
        self.lasting = ['--steps', f'{steps}', '--warmup', f'{steps // 20}', '--eval-every', f'{steps // 2}',
                        '--eval-sequences', '256']
        self.rate, self.mbit = {}, None

    def train(self, mode, seed, lr, launcher, how):
        return self.result(f'{mode}, rate {lr:g}, seed {seed}, {how}', launcher + self.command + self.lasting + [
            '--lr', f'{lr:g}', '--min-lr', f'{lr / 10:g}', '--seed', f'{seed}', *MODES[mode].split()], read)

    def measured(self, mode, seed):
        return self.train(mode, seed, self.rate[mode], on_network('fattree:4,1', self.mbit), 'network')


def main():
    e = AsyncDP()
    if not e.short and not e.options.data:
        raise SystemExit('--data TEXT is missing')
    e.build('PRECISION=fp32', 'train_gpt', 'build/tables')
    for mode in MODES:
        e.rate[mode] = best_rate(lambda lr, mode=mode: e.train(mode, SWEEP_SEED, lr, MPI, 'sweep')['loss'],
                                 RATES[2:3] if e.short else RATES)
    steps = ['--steps', '8' if e.short else '40', '--eval-every', '0']
    c = e.result('computation', on_network('fattree:4,1', UNLIMITED) + e.command + steps, step_ms)
    mb = e.train('synchronous', SWEEP_SEED, e.rate['synchronous'], MPI, 'sweep')['mb'] / 4
    e.mbit = mb * 8 / (c * 1e-3) / GOODPUT
    seeds = range(1, 2 if e.short else 4)
    found = [{mode: e.measured(mode, seed) for mode in MODES} for seed in seeds]

    e.say(f'\ncomputation {c:.1f} ms; four replicas, cables of {e.mbit:.0f} Mbit/s')
    of = lambda mode, what: [run[mode][what] for run in found]
    e.table(['mode', 'rate', 'validation loss', 'ms a step', 'MB a step and replica'], [
        [mode, f'{e.rate[mode]:g}', spread(of(mode, 'loss')), spread(of(mode, 'ms'), 1),
         f'{of(mode, "mb")[0] / 4:.3f}'] for mode in MODES])
    sync, plain, late, diloco = MODES
    for mode in (late, diloco):
        e.lower_or_equal(f'{mode} loses nothing against sync', of(mode, 'loss'), of(sync, 'loss'))
    e.lower_or_equal('The compensation does not harm (0.2 against 0)', of(late, 'loss'), of(plain, 'loss'))
    for mode in (plain, late):
        hidden = (statistics.mean(of(sync, 'ms')) - statistics.mean(of(mode, 'ms'))) / (
            statistics.mean(of(sync, 'ms')) - c)
        e.verdict(f'{mode} hides its communication', hidden > 0.8, f'{100 * hidden:.0f} % of it')
    e.close()


if __name__ == '__main__':
    main()
