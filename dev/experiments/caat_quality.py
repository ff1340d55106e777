#!/usr/bin/env python3
r"""Is a CAAT-Net as good at half the traffic? A small Llama, ordinary and with N streams (docs/caat.md).

    caat_quality.py --data TEXT                               N = 4, three seeds: half a day on two cores
    caat_quality.py --data TEXT --streams 2,8 --steps 1024    others, an eighth of the steps
    caat_quality.py --data TOKENS --streams 8 --seeds 1 --steps 400 --rates 6e-4 \
        --model '--model llama-130M --vocab 50257 --micro-batch 16 --global-batch 256'    on a GPU, without a sweep
    caat_quality.py --short                                   a tiny model on the headers of the machine; a minute

All configurations have the same 1.67 M parameters (but for --model), tokens (20 a parameter, each once: TEXT has 36 MB
or more), order of tokens and validation text. A CAAT-Net's N streams are on one rank (--caat-ranks N): which ranks
compute them changes nothing but rounding, so that no network is needed. Each has its own learning rate: of 1e-3 to
8e-3 the one with the lowest validation loss after 1,024 steps with another seed. P = 1, where no channel is private,
has to be the ordinary model: one seed, at the ordinary model's rate.

A run that is interrupted goes on at its last checkpoint. Verdict: two losses differ if their means are further apart
than twice the standard deviation over seeds; with three seeds that is a plain rule, not a proof."""
import json, os, shutil

from harness import Experiment, best_rate, spread

MODEL = '--arch llama --layers 8 --hidden 128 --heads 8 --ffn 352 --seq 128 --global-batch 32 --eval-sequences 1024'
SHORT_MODEL = '--arch llama --layers 2 --hidden 32 --heads 8 --ffn 64 --seq 32 --global-batch 4 --eval-sequences 16'
RATES, SWEEP_SEED = [1e-3, 2e-3, 4e-3, 8e-3], 100
ORDINARY = 'ordinary'


class Quality(Experiment):
    def __init__(self):
        super().__init__(__doc__, lambda parser: (
            parser.add_argument('--data', help='the text'),
            parser.add_argument('--streams', default='4', help='N, comma-separated [4]'),
            parser.add_argument('--steps', type=int, default=8192, help='of a run [8192]'),
            parser.add_argument('--seeds', type=int, default=3, help='how many [3]'),
            parser.add_argument('--model', help='other options of a model and its batch'),
            parser.add_argument('--rates', help='comma-separated; one is not searched')))
        self.steps, self.sweep = (32, 8) if self.short else (self.options.steps, 1024)
        self.seeds = range(1, 1 + (2 if self.short else self.options.seeds))
        self.rates = [float(x) for x in self.options.rates.split(',')] if self.options.rates else RATES
        self.model = self.options.model or (SHORT_MODEL if self.short else MODEL)
        self.rate = {}

    def train(self, name, steps, seed, lr):
        """The run's validation losses: [[tokens, loss], ...], and the losses of its first 50 steps."""
        folder = f'{self.out}/{name} {steps} {seed} {lr:g}'.replace(' ', '_')
        command = ['./train_gpt', *self.model.split(), '--steps', f'{steps}', '--warmup',
                   f'{steps // 50}', '--eval-every', f'{steps // 8}', '--sample-every', '0', '--lr', f'{lr:g}',
                   '--min-lr', f'{lr / 10:g}', '--seed', f'{seed}', '--out', folder, '--resume', '--save-every', '250',
                   '--keep-last', '1', '--log-every', '64']
        if name != ORDINARY:
            n, fraction = name.split()[1::2]
            command += ['--caat-ranks', n, '--caat-fraction', fraction]
        if self.options.data:
            command += ['--data', os.path.abspath(self.options.data)]

        def read(_):
            with open(f'{folder}/log.jsonl', encoding='utf-8') as f:
                rows = [json.loads(line) for line in f]
            if rows[-1]['step'] != steps:
                return None
            curve, tokens = [], 0
            for row in rows:
                tokens += row['tokens']
                if row['val_loss'] is not None:
                    curve.append([tokens, row['val_loss']])
            shutil.rmtree(folder)
            return {'curve': curve, 'first': [row['loss'] for row in rows[:50]]}

        return self.result(f'{name}, {steps} steps, seed {seed}, rate {lr:g}', command, read)

    def losses(self, name, seeds):
        return [self.train(name, self.steps, seed, self.rate[name])['curve'][-1][1] for seed in seeds]


def main():
    e = Quality()
    if not e.short and not e.options.data:
        raise SystemExit('--data TEXT is missing')
    e.build('train_gpt')
    ns = e.options.streams.split(',')
    names = [ORDINARY, *(f'N {n} P {p}' for n in ns for p in (0.5, 0.25))]
    for name in names:
        e.rate[name] = e.rates[0] if len(e.rates) == 1 else best_rate(
            lambda lr, name=name: e.train(name, e.sweep, SWEEP_SEED, lr)['curve'][-1][1],
            RATES[1:2] if e.short else e.rates)
    for seed in e.seeds:  # one after the other: what is there after a seed can be compared
        for name in names:
            e.losses(name, [seed])

    base = e.losses(ORDINARY, e.seeds)
    e.table(['configuration', 'learning rate', 'seeds', 'validation loss', 'against ordinary'], [
        [name, f'{e.rate[name]:g}', len(e.seeds), spread(e.losses(name, e.seeds)),
         f'{100 * (sum(e.losses(name, e.seeds)) / sum(base) - 1):+.2f} %'] for name in names])
    for name in names[1:]:
        e.lower_or_equal(f'No significant loss at P = {name.split()[3]} of the traffic, N = {name.split()[1]}',
                         e.losses(name, e.seeds), base)
    e.rate[f'N {ns[0]} P 1'] = e.rate[ORDINARY]
    n = min(50, max(8, e.steps // 50))  # of the warm-up: at the full rate a difference of rounding may grow to any size
    whole, ordinary = (e.train(x, e.steps, 1, e.rate[ORDINARY])['first'][:n] for x in (f'N {ns[0]} P 1', ORDINARY))
    apart = max(abs(a / b - 1) for a, b in zip(whole, ordinary))
    e.verdict(f'P = 1 with N = {ns[0]} is the ordinary model', apart <= 2**-8,
              f'losses of the first {len(whole)} steps differ by {apart:.1e} at most')
    runs = {name: [e.train(name, e.steps, seed, e.rate[name])['curve'] for seed in e.seeds] for name in names}
    e.plot('caat_quality', [('', 'million tokens', 'validation loss', {
        name: ([x * 1e-6 for x, _ in curves[0]], [sum(c[i][1] for c in curves) / len(curves)
                                                 for i in range(len(curves[0]))], '-')
        for name, curves in runs.items()})])
    e.close()


if __name__ == '__main__':
    main()
