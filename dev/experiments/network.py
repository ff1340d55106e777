#!/usr/bin/env python3
"""All-reduces on a real network of namespaces (dev/experiments/net_torus.sh) beside the simulator's times for the same
network.

    network.py [--quick] [--plot FILE.svg] [NETWORK ...]    networks [torus:4x4 torus:2x2 mesh:3x3]
    network.py --train          steps of a small GPT on 16 replicas, torus:4x4, with each all-reduce; two minutes

Needs root and Linux, and build/bench_collective, build/simulate, build/network_links (make build_benches). Takes about
20 minutes; --quick two. Prints a table for each network, and draws all into one SVG: measured times as dots, simulated
ones as lines.

The simulator's settings, the same for all: links of 20 Mbit/s times 0.9927 (a packet of 9014 bytes on the wire
carries 8948), 10 us, 12,000 bytes that tc's token bucket lets through at once after a pause, and 150 us of processor
for a message at either end, half of what a message of one byte took between two neighbours with nothing else going
on."""
import argparse
import math
import os
import re
import subprocess
import sys

MBIT, GOODPUT, LATENCY, OVERHEAD, BURST = 20, 8948 / 9014, '10us', '150us', '12KB'
ALGORITHMS = ['native', 'ring', '2d-ring', 'torus-ring', 'halving-doubling', 'multitree']
COLOURS = ['#777777', '#1f77b4', '#17becf', '#2ca02c', '#9467bd', '#d62728']


def seconds(text, unit):
    return float(text) * {'s': 1, 'ms': 1e-3, 'us': 1e-6, 'ns': 1e-9}[unit]


def allowed(network):
    """MPI's own, and what the network can have."""
    return [a for a in ALGORITHMS if not (a in ('2d-ring', 'torus-ring') and network.startswith(('ring', 'full')))]


def measure(network, kib, rounds):
    names = ','.join(allowed(network))
    out = subprocess.run(['dev/experiments/net_torus.sh', 'with', network, str(MBIT), '--', 'build/bench_collective',
                          '--topology', network,
                          '--kib', str(kib), '--rounds', str(rounds), '--nap', '50', '--one-clock', '--algorithms',
                          names],
                         check=True, stdout=subprocess.PIPE, text=True).stdout
    return {m[1]: float(m[2]) * 1e-3 for m in re.finditer(r'KiB +(\S+) +([\d.]+) ms', out)}


def simulate(network, kib):
    names = ','.join(allowed(network)[1:])
    out = subprocess.run(['build/simulate', '--topology', network, '--bytes', f'{kib}KiB', '--algorithm', names,
                          '--as-run', '--bandwidth',
                          f'{MBIT * GOODPUT}Mbit/s', '--latency', LATENCY, '--overhead', OVERHEAD, '--burst', BURST],
                         check=True, stdout=subprocess.PIPE, text=True).stdout
    return {m[1]: seconds(m[2], m[3]) for m in re.finditer(r'^ *\d+ +(\S+) +\d+ +([\d.]+) (\w+)', out, re.M)}


def table(network, sizes, measured, simulated):
    print(f'\n{network}, {MBIT} Mbit/s a link and direction: measured ms (simulated; difference)')
    print(f'{"":18}' + ''.join(f'{f"{k} KiB":>26}' for k in sizes))
    worst = 0
    for a in allowed(network):
        row = f'{a:18}'
        for k in sizes:
            m, s = measured[k].get(a), simulated[k].get(a)
            cell = f'{m * 1e3:.1f}' if m else '-'
            if m and s:
                cell += f' ({s * 1e3:.1f}; {100 * (s / m - 1):+.0f} %)'
                worst = max(worst, abs(s / m - 1)) if k >= 256 else worst
            row += f'{cell:>26}'
        print(row)
    print(f'largest difference from 256 KiB on: {100 * worst:.0f} %', flush=True)


def plot(path, results):
    """One panel a network, both axes logarithmic: a line for the simulated times, dots for the measured ones."""
    W, H, left, top, gap = 330, 260, 52, 44, 40
    width, height = len(results) * (W + gap) + left, H + top + 100
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
           f'font-size="12">',
           f'<rect width="{width}" height="{height}" fill="white"/>']
    for i, (network, sizes, measured, simulated) in enumerate(results):
        x0, y0 = left + i * (W + gap), top
        times = [t for k in sizes for t in list(measured[k].values()) + list(simulated[k].values())]
        low, high = math.floor(math.log10(min(times)) * 2) / 2, math.ceil(math.log10(max(times)) * 2) / 2
        octaves = max(1, math.log2(sizes[-1]) - math.log2(sizes[0]))
        x = lambda k: x0 + 14 + (W - 28) * (math.log2(k) - math.log2(sizes[0])) / octaves
        y = lambda t: y0 + H - H * (math.log10(t) - low) / (high - low)
        out.append(f'<text x="{x0}" y="{y0 - 14}" font-weight="bold">{network}: seconds</text>')
        out.append(f'<rect x="{x0}" y="{y0}" width="{W}" height="{H}" fill="none" stroke="#999"/>')
        for e in range(math.ceil(low), math.floor(high) + 1):
            out.append(f'<line x1="{x0}" x2="{x0 + W}" y1="{y(10 ** e):.1f}" y2="{y(10 ** e):.1f}" stroke="#ddd"/>'
                       f'<text x="{x0 - 5}" y="{y(10 ** e) + 4:.1f}" text-anchor="end" '
                       f'fill="#555">{10.0 ** e:g}</text>')
        for k in sizes:
            label = f'{k} KiB' if k < 1024 else f'{k // 1024} MiB'
            out.append(f'<text x="{x(k):.1f}" y="{y0 + H + 16}" text-anchor="middle" fill="#555">{label}</text>')
        for a in allowed(network):
            c = COLOURS[ALGORITHMS.index(a)]
            line = ' '.join(f'{x(k):.1f},{y(simulated[k][a]):.1f}' for k in sizes if a in simulated[k])
            if line:
                out.append(f'<polyline points="{line}" fill="none" stroke="{c}" stroke-width="1.5"/>')
            for k in sizes:
                if a in measured[k]:
                    out.append(f'<circle cx="{x(k):.1f}" cy="{y(measured[k][a]):.1f}" r="3.5" fill="{c}"/>')
    for i, a in enumerate(ALGORITHMS):
        x, y = left + i % 4 * 180, top + H + 44 + i // 4 * 20
        name = 'MPI_Allreduce' if a == 'native' else a
        out.append(f'<circle cx="{x + 4}" cy="{y - 4}" r="4" fill="{COLOURS[i]}"/><text x="{x + 14}" '
                   f'y="{y}">{name}</text>')
    out.append(f'<text x="{left + 4 * 180}" y="{top + H + 44}" fill="#555">dots: measured; lines: '
               f'simulated</text></svg>')
    with open(path, 'w', encoding='utf-8') as f:
        f.write('\n'.join(out) + '\n')


def train():
    """0.84 M parameters, 3.4 MB of gradients a step; medians of steps 2 to 8."""
    options = '--seq 64 --global-batch 32 --micro-batch 2 --dp 16 --steps 8 --warmup 2 --eval-every 0 --sample-every 0'
    print('milliseconds a step, 16 replicas on torus:4x4, 20 Mbit/s')
    for a in ['native'] + ALGORITHMS[1:]:
        plan = ['--allreduce', a] + (['--topology', 'torus:4x4'] if a != 'native' else [])
        out = subprocess.run(['dev/experiments/net_torus.sh', 'with', 'torus:4x4', str(MBIT), '--', './train_gpt']
                             + options.split() + plan,
                             check=True, stdout=subprocess.PIPE, text=True,
                             env=dict(os.environ, OMP_NUM_THREADS='1')).stdout
        steps = sorted(float(x) for x in re.findall(r'([\d.]+) ms', out)[1:])
        print(f'{a:18} {steps[len(steps) // 2]:8.0f}', flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--quick', action='store_true', help='64 KiB to 1 MiB only, three rounds')
    parser.add_argument('--train', action='store_true', help='training steps instead')
    parser.add_argument('--plot', metavar='FILE', help='draw the times into this SVG')
    parser.add_argument('networks', nargs='*', default=['torus:4x4', 'torus:2x2', 'mesh:3x3'])
    o = parser.parse_args()
    if o.train:
        return train()
    sizes = [64, 256, 1024] if o.quick else [64, 256, 1024, 4096, 16384]
    results = []
    for network in o.networks:
        measured, simulated = {}, {}
        for i, k in enumerate(sizes):
            print(f'{network}: {k} KiB ({i + 1} of {len(sizes)})', file=sys.stderr, flush=True)
            measured[k] = measure(network, k, 3 if o.quick or k > 1024 else 9)
            simulated[k] = simulate(network, k)
        table(network, sizes, measured, simulated)
        results.append((network, sizes, measured, simulated))
    if o.plot:
        plot(o.plot, results)


main()
