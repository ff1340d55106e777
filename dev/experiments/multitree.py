#!/usr/bin/env python3
"""Is MultiTree the fastest all-reduce on a real torus, and is the simulator right? (docs/collectives.md)

    multitree.py            torus:4x4, torus:2x2, mesh:3x3, 64 KiB to 16 MiB, and training; root; 20 minutes
    multitree.py --short    torus:2x2 and 64 KiB; half a minute

All-reduces run on a network of namespaces (net.py), and in the simulator with the same settings: links of 20 Mbit/s
times the data in a packet, 10 us, 12,000 bytes that a link lets through at once after a pause, and 150 us of processor
for a message at either end, half of what a message of one byte took between two neighbours with nothing else going on.
Then a small GPT (0.84 M parameters, 3.4 MB of gradients a step) is trained on replicas joined by the torus."""
import re

from harness import Experiment, GOODPUT, on_network, step_ms

MBIT = 20
ALGORITHMS = ['native', 'ring', '2d-ring', 'torus-ring', 'halving-doubling', 'multitree']
UNIT = {'s': 1e3, 'ms': 1, 'us': 1e-3, 'ns': 1e-6}


def measured(text):
    return {name: float(ms) for name, ms in re.findall(r'KiB +(\S+) +([\d.]+) ms', text)} or None


def simulated(text):
    rows = re.findall(r'^ *\d+ +(\S+) +\d+ +([\d.]+) (\w+)', text, re.M)
    return {name: float(time) * UNIT[unit] for name, time, unit in rows} or None


def both(e, network, kib):
    """Milliseconds of each algorithm (native: MPI_Allreduce), measured and simulated."""
    bench = ['build/bench_collective', '--topology', network, '--kib', f'{kib}', '--nap', '50',
             '--rounds', '3' if e.short or kib > 1024 else '9', '--algorithms', ','.join(ALGORITHMS)]
    simulate = ['build/simulate', '--topology', network, '--bytes', f'{kib}KiB', '--as-run', '--latency', '10us',
                '--algorithm', ','.join(ALGORITHMS[1:]), '--bandwidth', f'{MBIT * GOODPUT:.4f}Mbit/s',
                '--overhead', '150us', '--burst', '12KB']
    return (e.result(f'{network}, {kib} KiB, measured', on_network(network, MBIT) + bench, measured),
            e.result(f'{network}, {kib} KiB, simulated', simulate, simulated))


def compare(e, network, sizes):
    """The network's table; returns the curves of its picture."""
    found = [both(e, network, kib) for kib in sizes]
    e.say(f'\n{network}, {MBIT} Mbit/s a link and direction, ms: measured (simulated)')
    cell = lambda a, real, model: f'{real[a]:.4g}' + (f' ({model[a]:.4g})' if a in model else '')
    e.table(['', *(f'{kib} KiB' for kib in sizes)], [[a, *(cell(a, *f) for f in found)] for a in ALGORITHMS])
    errors = [abs(model[a] / real[a] - 1) for kib, (real, model) in zip(sizes, found) for a in model if kib >= 256]
    if errors:
        e.verdict(f'{network}: the simulator is within 15 % from 256 KiB on', max(errors) <= 0.15,
                  f'{100 * max(errors):.0f} % at most')
    real = found[-1][0]
    e.verdict(f'{network}, {sizes[-1]} KiB: MultiTree is faster than the ring and the 2d-ring',
              real['multitree'] < min(real['ring'], real['2d-ring']),
              f'{real["ring"] / real["multitree"]:.2f} and {real["2d-ring"] / real["multitree"]:.2f} times as fast')
    curves = {}
    for i, a in enumerate(ALGORITHMS):
        curves[f'{a}, measured'] = (sizes, [real[a] for real, _ in found], f'oC{i}')
        if a in found[0][1]:
            curves[f'{a}, simulated'] = (sizes, [model[a] for _, model in found], f'-C{i}')
    return network, 'KiB', 'ms', curves


def train(e, network, ranks):
    options = (f'./train_gpt --dp {ranks} --seq 64 --global-batch 32 --micro-batch {32 // ranks} '
               f'--steps {3 if e.short else 8} --warmup 2 --eval-every 0 --sample-every 0')
    row = []
    for a in ALGORITHMS:
        plan = ['--allreduce', a] + (['--topology', network] if a != 'native' else [])
        row.append(f'{e.result(f"training, {a}", on_network(network, MBIT) + options.split() + plan, step_ms):.0f}')
    e.say(f'\nms a training step, {ranks} replicas on {network}')
    e.table(ALGORITHMS, [row])


def main():
    e = Experiment(__doc__)
    e.build('PRECISION=fp32', 'train_gpt', 'build/bench_collective', 'build/simulate', 'build/tables')
    sizes = [64] if e.short else [64, 256, 1024, 4096, 16384]
    panels = [compare(e, n, sizes) for n in (['torus:2x2'] if e.short else ['torus:4x4', 'torus:2x2', 'mesh:3x3'])]
    train(e, *(('torus:2x2', 4) if e.short else ('torus:4x4', 16)))
    e.plot('network', panels, log=True)
    e.close()


if __name__ == '__main__':
    main()
