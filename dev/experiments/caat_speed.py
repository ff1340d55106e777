#!/usr/bin/env python3
"""Is a CAAT-Net faster? Training steps, prefill and decoding on slow links, for every fraction of shared channels.

    caat_speed.py [--out FOLDER]            everything: most of an hour on two cores
    caat_speed.py --quick [--out FOLDER]    does everything work? t = 2 and 4, P = 0.5, one link; a few minutes
    caat_speed.py --report [--out FOLDER]   the tables, the picture and the verdicts again, of what is there
    caat_speed.py --report --docs           ... and writes them into docs/caat.md and docs/images/caat_speed.svg

dev/experiments/repro_caat.sh speed builds what this needs and calls it. Needs root (dev/experiments/net_torus.sh makes
the network).

The network. The t tensor ranks are t nodes, each with one cable to a switch. How fast the cables are follows from the
machine, for every t, precision and phase (training, prefill, decoding): the time of the ordinary model on unlimited
cables is its computation; then the cables get the rate at which the bytes that a rank of the ordinary model sends
(counted in that run) take 1/4, 1 or 4 times as long. A link lets NET_BURST bytes through at once after a pause.
Training and prefill send long vectors, in packets of 65,000 bytes, which cost the processor least. Decoding sends short
ones, in packets of 576 bytes, so that the burst, a packet, is short beside them.

The runs. All ranks share the cores of the machine, with one thread each, and wait for each other in every sum: a
step is computation + communication, unless an implementation hides one behind the other. The prediction beside the
measurement says just that: the same model's time on unlimited cables + its bytes / the rate. A round measures every
configuration once, those that are compared one after another, so that what slows the machine for a while hits all of
them. A time is the median over rounds. results.json holds every launch: after an interruption the same command
continues with the next one.

The verdicts. Faster: in every round, on all t and links. Hidden by --tp-comm-overlap: 1 - (t_overlap - t_unlimited) /
(t_plain - t_unlimited), where a link adds a tenth of a step or more."""
import argparse
import collections
import itertools
import os
import re
import statistics
import subprocess
import sys
import time

import runs
from runs import PROJECT, duration, read_json, round_steps, stop, verdict_lines, write_json

MODEL = '--arch gpt2 --layers 4 --hidden 768 --heads 8'.split()
HEADS = 8
TEXT = 'docs/ladder/1_one_process.c'  # its words do not matter
STEPS, SKIP = 4, 1  # of a launch; the first ones, which open connections and touch memory, do not count
PROMPT, WRITTEN = 256, 16  # tokens
PHASES = ['training', 'prefill', 'decode']
OPTIONS = {
    'training': ['--seq', '64', '--micro-batch', '4', '--steps', str(STEPS), '--eval-every', '0', '--sample-every',
                 '0', '--data', TEXT],
    'prefill': ['--seq', str(PROMPT), '--max-new-tokens', '1', '--generate', 'a' * PROMPT],
    'decode': ['--seq', '64', '--max-new-tokens', str(WRITTEN), '--top-k', '1', '--generate', 'a'],
}
COUNT = {'training': STEPS, 'prefill': 1, 'decode': WRITTEN}  # of what is timed, in a launch
UNIT = {'training': 'ms a step', 'prefill': 'ms to the first token', 'decode': 'ms a token'}
MTU = {'training': 65000, 'prefill': 65000, 'decode': 576}
# Open MPI 4 makes a nonblocking sum in place a binomial tree: as many bytes in all, but not the same for each rank, and
# one after another. 3: Rabenseifner's algorithm, which uses all cables at once, as blocking sums do.
MPI_FLAGS = '--mca coll_libnbc_iallreduce_algorithm 3'
SHARES = [0.25, 1.0, 4.0]  # communication / computation of the ordinary model
SHARE_NAME = {None: 'unlimited', 0.25: '1/4', 1.0: '1', 4.0: '4'}
UNLIMITED = 20000  # Mbit/s
FRACTIONS = [1.0, 0.75, 0.5, 0.25, 0.0]
OVERLAPPED = [None, 0.5]  # fractions that are measured with --tp-comm-overlap too
KINDS = [('fp32', 'fp32'), ('bf16', 'fp32'), ('bf16', 'same')]  # precision, --caat-grad-dtype
KIND_NAME = {('fp32', 'fp32'): 'float32', ('bf16', 'fp32'): 'bf16, gradients summed in float32',
             ('bf16', 'same'): 'bf16, gradients summed in bf16'}
CALIBRATIONS, PATIENCE = 3, 300  # launches; seconds that one may take
COLOUR = {2: '#1f77b4', 4: '#2ca02c', 8: '#d62728'}

# fraction None: the ordinary model; share None: unlimited cables
Case = collections.namedtuple('Case', 'phase t precision fraction grad overlap share')


def name_of(case):
    model = 'ordinary' if case.fraction is None else f'P {case.fraction:g}'
    grad = ', bf16 gradients' if case.grad == 'same' else ''
    return (f'{case.phase}, t {case.t}, {case.precision}, {model}{grad}{", overlap" if case.overlap else ""}, link '
            f'{SHARE_NAME[case.share]}')


# ---- One launch --------------------------------------------------------------------------------------------------

def command_of(o, case, mbit):
    os.environ.update(NET_MTU=str(MTU[case.phase]), NET_BURST=str(MTU[case.phase] + 14), NET_MPI_FLAGS=MPI_FLAGS)
    command = runs.on_star(os.path.join(o.out, 'network.txt'), case.t, mbit) + [o.trainer[case.precision]] + MODEL + [
        '--tp', str(case.t)] + OPTIONS[case.phase]
    if case.fraction is not None:
        command += ['--caat-ranks', str(case.t), '--caat-fraction', f'{case.fraction:g}', '--caat-grad-dtype',
                    case.grad]
    return command + (['--tp-comm-overlap'] if case.overlap else [])


def read_training(text):
    """Milliseconds of the steps; MB of a step, all ranks together: in the blocks, and in all."""
    ms = [float(m) for m in re.findall(r'^step .*?([\d.]+) ms', text, re.M)]
    blocks = re.search(r'^  tensor .*?([\d.]+)$', text, re.M)
    total = re.search(r'^ +together +([\d.]+) +([\d.]+)$', text, re.M)
    if len(ms) != STEPS or not blocks or not total:
        return None
    if abs(float(total[1]) - float(total[2])) > 0.0015:
        stop(f'{total[1]} MB of tensor traffic were counted, {total[2]} follow from the formula')
    return {'ms': ms[SKIP:], 'blocks': float(blocks[1]), 'mb': float(total[1])}


def read_generated(case, text):
    done = re.search(r'^done +(\d+) tokens read in ([\d.]+) s, (\d+) written in ([\d.]+) s', text, re.M)
    sent = re.search(r'^sent +(\d+) bytes', text, re.M)
    if not done or not sent or int(done[3]) != COUNT[case.phase]:
        return None
    mb = int(sent[1]) * case.t * 1e-6 / COUNT[case.phase]
    ms = 1e3 * float(done[2]) if case.phase == 'prefill' else 1e3 * float(done[4]) / (WRITTEN - 1)
    return {'ms': [ms], 'mb': mb}


def others_running():
    """How many other threads of this machine want a core: the fewest of five looks, for what ends just now."""
    seen = []
    for _ in range(5):
        time.sleep(0.01)
        with open('/proc/loadavg', encoding='ascii') as f:
            seen.append(int(f.read().split()[3].split('/')[0]) - 1)
    return min(seen)


def measure(o, case, mbit):
    """One launch, twice if it fails: Open MPI 4.1's mpirun crashes now and then."""
    for _ in range(2):
        others, began = others_running(), time.time()
        p = runs.start(command_of(o, case, mbit))
        try:
            text = p.communicate(timeout=PATIENCE)[0]
        except subprocess.TimeoutExpired:
            runs.end_children()
            text = f'stopped after {PATIENCE} s'
        if p in runs.child:
            runs.child.remove(p)
        got = read_training(text) if case.phase == 'training' else read_generated(case, text)
        if p.returncode == 0 and got:
            return dict(got, others=others, seconds=time.time() - began)
    with open(os.path.join(o.out, 'output.txt'), 'w', encoding='utf-8') as f:
        f.write(text)
    lines = text.splitlines()
    told = [x for x in lines if x.startswith(('train_gpt:', 'net_torus.sh:'))] or lines[-5:]
    stop(f'{name_of(case)}: failed (exit status {p.returncode}); all that it wrote is in {o.out}/output.txt:\n    ' +
         '\n    '.join(told))


# ---- All launches ------------------------------------------------------------------------------------------------

def calibration_key(case):
    return f'{case.phase} {case.t} {case.precision}'


def mbit_of(o, c, case):
    if case.share is None:
        return UNLIMITED
    goodput = (MTU[case.phase] - 52) / (MTU[case.phase] + 14)
    bits = c['mb'] * 1e6 / case.t * 8 / goodput
    return float(f'{bits / (c["ms"] * 1e-3 * case.share) * 1e-6:.4g}')


def calibrate(o, results):
    """The computation and the bytes of the ordinary model, for each phase, t and precision."""
    todo = [Case(phase, t, precision, None, 'fp32', False, None)
            for phase, t, precision in itertools.product(PHASES, o.ranks, o.precisions)]
    for case in todo:
        key = calibration_key(case)
        if key in results['calibration']:
            continue
        got = [measure(o, case, UNLIMITED) for _ in range(1 if o.quick else CALIBRATIONS)]
        ms = statistics.median(x for g in got for x in g['ms'])
        results['calibration'][key] = {'ms': ms, 'mb': got[0]['mb'], 'startup': max(
            0.5, statistics.median(g['seconds'] for g in got) - COUNT[case.phase] * ms * 1e-3)}
        write_json(o.results, results)
        rates = ', '.join(f'{mbit_of(o, results["calibration"][key], case._replace(share=s)):g}' for s in o.shares)
        print(f'{key}: computation {ms:.1f} ms, {got[0]["mb"]:.3f} MB: cables of {rates} Mbit/s', flush=True)


def cases_of(o):
    """Those of a round, in their order."""
    cases = []
    for phase, t, precision, share in itertools.product(PHASES, o.ranks, o.precisions, [None] + o.shares):
        grads = ['fp32', 'same'] if precision == 'bf16' and phase == 'training' else ['fp32']
        models = [(None, 'fp32')] + list(itertools.product(o.fractions, grads))
        cases += [Case(phase, t, precision, p, g, False, share) for p, g in models]
        if phase == 'training' and o.overlap:
            cases += [Case(phase, t, precision, p, g, True, share) for p, g in models if p in OVERLAPPED]
    return cases


def guess(results, case):
    c = results['calibration'][calibration_key(case)]
    return c['startup'] + COUNT[case.phase] * c['ms'] * 1e-3 * (1 + (case.share or 0))


def measure_all(o, results):
    plan = [(r, case) for r in range(o.rounds) for case in cases_of(o)]
    todo = [(r, case) for r, case in plan if len(results['runs'].get(name_of(case), [])) <= r]
    left = sum(guess(results, case) for _, case in todo)
    print(f'{len(plan)} launches, {len(plan) - len(todo)} of them complete; about {duration(left)}', flush=True)
    spent = guessed = 0.0
    for i, (r, case) in enumerate(todo):
        got = measure(o, case, mbit_of(o, results['calibration'][calibration_key(case)], case))
        results['runs'].setdefault(name_of(case), []).append(got)
        write_json(o.results, results)
        spent, guessed = spent + got['seconds'], guessed + guess(results, case)
        print(f'[{len(plan) - len(todo) + i + 1}/{len(plan)}] round {r + 1}, {name_of(case)}: '
              f'{statistics.median(got["ms"]):.1f} ms; {duration((left - guessed) * spent / guessed)} left', flush=True)


# ---- Reading the results -----------------------------------------------------------------------------------------

def times(results, case):
    """Milliseconds, one for each round."""
    return [statistics.median(g['ms']) for g in results['runs'].get(name_of(case), [])]


def ms_of(results, case):
    got = times(results, case)
    return statistics.median(got) if got else None


def mb_of(results, case):
    got = results['runs'].get(name_of(case), [])
    return got[0]['mb'] if got else None


def ordinary(case):
    return case._replace(fraction=None, grad='fp32')


def speedups(results, case):
    """The ordinary model's time / this one's, round by round."""
    return [a / b for a, b in zip(times(results, ordinary(case)), times(results, case))]


def predicted(o, results, case):
    """Computation + bytes / rate."""
    computation, mb = ms_of(results, case._replace(share=None, overlap=False)), mb_of(results, case)
    c = results['calibration'].get(calibration_key(case))
    if computation is None or mb is None or not c:
        return None
    return computation + (mb / c['mb'] * c['ms'] * case.share if case.share else 0)


def kinds_of(o, phase):
    kinds = [k for k in KINDS if k[0] in o.precisions]
    return kinds if phase == 'training' else [k for k in kinds if k[1] == 'fp32']


def case_of(phase, t, kind, fraction, share, overlap=False):
    return Case(phase, t, kind[0], fraction, 'fp32' if fraction is None else kind[1], overlap, share)


def kind_name(phase, kind):
    return KIND_NAME[kind] if phase == 'training' else KIND_NAME[kind].split(',')[0]


def number(x, digits):
    return '-' if x is None else f'{x:.{digits}f}'


def table(o, results, phase, t, kind):
    """Lines of Markdown: a row for each model."""
    head = ['', 'MB', 'unlimited'] + [f'link {SHARE_NAME[s]}' for s in o.shares]
    out = ['| ' + ' | '.join(head) + ' |', '|---' * len(head) + '|']
    for fraction in [None] + o.fractions:
        case = case_of(phase, t, kind, fraction, None)
        row = ['ordinary' if fraction is None else f'P = {fraction:g}', number(mb_of(results, case), 3),
               number(ms_of(results, case), 1)]
        for share in o.shares:
            limited = case._replace(share=share)
            faster = speedups(results, limited)
            text = f'{number(ms_of(results, limited), 1)} ({number(predicted(o, results, limited), 1)})'
            row.append(text + (f' x{statistics.median(faster):.2f}' if fraction is not None and faster else ''))
        out.append('| ' + ' | '.join(row) + ' |')
    return out


def summary(o, results, fraction):
    """Speed-ups of one fraction, for every t and kind."""
    columns = [(phase, share) for phase in PHASES for share in o.shares]
    head = ['', 't'] + [f'{phase}, {SHARE_NAME[share]}' for phase, share in columns]
    out = ['| ' + ' | '.join(head) + ' |', '|---' * len(head) + '|']
    for kind, t in itertools.product(kinds_of(o, 'training'), o.ranks):
        row = [KIND_NAME[kind], str(t)]
        for phase, share in columns:
            grad = kind[1] if phase == 'training' else 'fp32'
            faster = speedups(results, case_of(phase, t, (kind[0], grad), fraction, share))
            row.append(number(statistics.median(faster), 2) if faster else '-')
        out.append('| ' + ' | '.join(row) + ' |')
    return out


# ---- The verdicts: (claim, True, False or None: not decided, why) ------------------------------------------------

def faster_claim(o, results, phase, kind):
    what = 'Training' if phase == 'training' else 'Inference'
    words = f'{what} is faster at P = 0.5: {phase}, {kind_name(phase, kind)}'
    seen, slower = [], []
    for share in o.shares:
        row = []
        for t in o.ranks:
            rounds = speedups(results, case_of(phase, t, kind, 0.5, share))
            if len(rounds) < 2:
                return words, None, 'needs two rounds'
            row.append(f'{statistics.median(rounds):.2f}')
            if min(rounds) <= 1:
                slower.append(f'link {SHARE_NAME[share]} with t = {t} ({min(rounds):.2f} to {max(rounds):.2f})')
        seen.append(f'link {SHARE_NAME[share]}: {", ".join(row)}')
    return (words, not slower, f'{"; ".join(seen)} times the ordinary model\'s speed (t = '
            f'{", ".join(map(str, o.ranks))})' + (f'; not in every round: {", ".join(slower)}' if slower else ''))


def traffic_claim(o, results, kind):
    words = f'Half the traffic at P = 0.5, {KIND_NAME[kind]}'
    shares = []
    for t in o.ranks:
        own, plain = (results['runs'].get(name_of(case_of('training', t, kind, p, None))) for p in (0.5, None))
        if not own or not plain:
            return words, None, 'needs P = 0.5 and the ordinary model'
        shares.append([own[0][x] / plain[0][x] for x in ('blocks', 'mb')])
    blocks, all_ = ([x[i] for x in shares] for i in (0, 1))
    return (words, max(blocks) <= 0.5005, f'{max(blocks):.3f} of the ordinary model\'s bytes in the blocks, '
            f'{" to ".join(dict.fromkeys(f"{x:.3f}" for x in (min(all_), max(all_))))} with embedding, head and norms '
            '(0.5 asked of the blocks)')


def hidden_claim(o, results, kind, fraction):
    model = 'ordinary model' if fraction is None else f'P = {fraction:g}'
    words = f'--tp-comm-overlap hides 70 % of what links of 1/4 add, {model}, {KIND_NAME[kind]}'
    seen, asked = [], []
    for share in o.shares:
        row = []
        for t in o.ranks:
            case = case_of('training', t, kind, fraction, share)
            three = case._replace(share=None), case, case._replace(overlap=True)
            free, plain, own = (ms_of(results, x) for x in three)
            if None in (free, plain, own) or plain <= free:
                return words, None, 'needs steps with and without it, and links that slow a step down'
            # where a link adds less than a tenth of a step, the quotient is noise
            row.append(100 * (1 - (own - free) / (plain - free)) if plain >= 1.1 * free else None)
        asked += [x for x in row if x is not None] if share < 1 else []
        percents = ', '.join('too little' if x is None else f'{round(x)} %' for x in row)
        seen.append(f'link {SHARE_NAME[share]}: {percents}')
    return words, min(asked) >= 70 if asked else None, f'{"; ".join(seen)} (t = {", ".join(map(str, o.ranks))})'


def prediction_claim(o, results, phase):
    words = f'Computation + bytes / rate is the time within 15 %: {phase}'
    off = [ms_of(results, c) / predicted(o, results, c) - 1 for c in cases_of(o)
           if c.phase == phase and not c.overlap and c.share and times(results, c) and predicted(o, results, c)]
    if not off:
        return words, None, 'needs times with and without limited cables'
    return (words, max(abs(x) for x in off) <= 0.15, f'measured / predicted - 1 is {100 * min(off):+.0f} % to '
            f'{100 * max(off):+.0f} %, its median {100 * statistics.median(off):+.1f} %')


def verdicts(o, results):
    for phase in PHASES:
        for kind in kinds_of(o, phase):
            yield faster_claim(o, results, phase, kind)
    for kind in kinds_of(o, 'training'):
        yield traffic_claim(o, results, kind)
    if o.overlap:
        for kind, fraction in itertools.product(kinds_of(o, 'training'), OVERLAPPED):
            if fraction is not None or kind[1] == 'fp32':
                yield hidden_claim(o, results, kind, fraction)
    for phase in PHASES:
        yield prediction_claim(o, results, phase)


# ---- The picture -------------------------------------------------------------------------------------------------

def points(o, results, phase, t, kind, share):
    """(P, speed-up, predicted speed-up) of the fractions that were measured."""
    base, out = predicted(o, results, case_of(phase, t, kind, None, share)), []
    for fraction in o.fractions:
        case = case_of(phase, t, kind, fraction, share)
        faster, own = speedups(results, case), predicted(o, results, case)
        if faster and base and own:
            out.append((fraction, statistics.median(faster), base / own))
    return out


def draw_curve(curve, colour, dash, x, y):
    line = ' '.join(f'{x(p):.1f},{y(v):.1f}' for p, v, _ in curve)
    out = [f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.8" stroke-dasharray="{dash}"/>']
    out += [f'<circle cx="{x(p):.1f}" cy="{y(v):.1f}" r="2" fill="{colour}"/><circle cx="{x(p):.1f}" '
            f'cy="{y(said):.1f}" r="3.5" fill="none" stroke="{colour}"/>' for p, v, said in curve]
    return out


def plot(path, o, results):
    """Speed-up over the ordinary model against P: a row of panels for each phase, a column for each link."""
    W, H, left, top, gap = 210, 150, 40, 44, 44
    kinds = {'training': [KINDS[0], KINDS[2]], 'prefill': [KINDS[0], KINDS[1]], 'decode': [KINDS[0], KINDS[1]]}
    width, height = max(560, left + len(o.shares) * (W + gap)), top + len(PHASES) * (H + gap + 14) + 50
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
           f'font-size="12">', f'<rect width="{width}" height="{height}" fill="white"/>']
    for row, phase in enumerate(PHASES):
        lines = {(kind, t, share): points(o, results, phase, t, kind, share)
                 for kind in kinds[phase] for t in o.ranks for share in o.shares}
        for column, share in enumerate(o.shares):
            x0, y0 = left + column * (W + gap), top + row * (H + gap + 14)
            values = [v for (_, _, of), curve in lines.items() if of == share for p in curve for v in p[1:]]
            high, low = max(values + [1.1]) + 0.05, min(values + [0.95]) - 0.05
            x = lambda p: x0 + 14 + (W - 28) * (1 - p)
            y = lambda v: y0 + H * (high - v) / (high - low)
            out.append(f'<text x="{x0}" y="{y0 - 8}" font-weight="bold">{phase}, link {SHARE_NAME[share]}</text>')
            for v in sorted({1.0} | {round(v, 6) for v in round_steps(low, high, 5)}):
                colour = '#444' if v == 1 else '#ddd'
                out.append(f'<line x1="{x0}" x2="{x0 + W}" y1="{y(v):.1f}" y2="{y(v):.1f}" stroke="{colour}"/><text '
                           f'x="{x0 - 6}" y="{y(v) + 4:.1f}" text-anchor="end" fill="#555">{v:.2g}</text>')
            out += [f'<text x="{x(p):.1f}" y="{y0 + H + 15}" text-anchor="middle" fill="#555">{p:g}</text>'
                    for p in o.fractions]
            for (kind, t, of), curve in lines.items():
                if of == share and curve:
                    out += draw_curve(curve, COLOUR.get(t, '#666'), '' if kind[0] == 'fp32' else '5 3', x, y)
            out.append(f'<rect x="{x0}" y="{y0}" width="{W}" height="{H}" fill="none" stroke="#999"/>')
    legend = [(f't = {t}', COLOUR.get(t, '#666'), '') for t in o.ranks]
    legend += [('float32', '#444', ''), ('bf16, all sums in bf16', '#444', '5 3')]
    for i, (text, colour, dash) in enumerate(legend):
        x0 = left + (70 * i if i < len(o.ranks) else 70 * len(o.ranks) + 100 * (i - len(o.ranks)))
        out.append(f'<line x1="{x0}" x2="{x0 + 20}" y1="{height - 30}" y2="{height - 30}" stroke="{colour}" '
                   f'stroke-width="2" stroke-dasharray="{dash}"/><text x="{x0 + 25}" y="{height - 26}">{text}</text>')
    out.append(f'<text x="{left}" y="{height - 8}" fill="#555">P, the fraction of shared channels; times the ordinary '
               f'model\'s speed; rings: predicted</text></svg>')
    with open(path, 'w', encoding='utf-8') as f:
        f.write('\n'.join(out) + '\n')


# ---- The report --------------------------------------------------------------------------------------------------

def load_share(results):
    """The share of launches that began while something else wanted a core."""
    others = [g['others'] > 0 for k in results['runs'].values() for g in k]
    return sum(others) / len(others)


def caption(results):
    s = results['settings']
    rounds = max(len(k) for k in results['runs'].values())
    text = (f'Model: `{" ".join(s["model"])}`; training: 256 tokens a step; prefill: {PROMPT} tokens; decode: '
            f'{WRITTEN} tokens. {s["machine"]}; one thread a rank; {s["date"]}, commit {s["commit"]}; '
            f'rounds: {rounds}. '
            f'{100 * load_share(results):.0f} % of the launches began while something else ran.')
    if s['slow_bf16']:
        text += ' This processor has neither AMX nor AVX-512 BF16: its bf16 converts to float32 and is slow.'
    return text


def legend():
    return ('MB: sent by all ranks together. Milliseconds: measured (computation + bytes / rate); x: times the '
            'ordinary model\'s speed.')


def report(o, results):
    if not results or not results.get('runs'):
        stop(f'there is no measurement in {o.out}')
    text = [caption(results), '', legend(), '']
    for phase, t in itertools.product(PHASES, o.ranks):
        for kind in kinds_of(o, phase):
            text += [f'{phase.capitalize()}, t = {t}, {kind_name(phase, kind)}, {UNIT[phase]}:', '']
            text += table(o, results, phase, t, kind) + ['']
    if 0.5 in o.fractions:
        text += ['P = 0.5: times the ordinary model\'s speed, by phase and link:', ''] + summary(o, results, 0.5) + ['']
    text += ['Verdicts.', ''] + list(verdict_lines(verdicts(o, results)))
    with open(os.path.join(o.out, 'report.md'), 'w', encoding='utf-8') as f:
        f.write('\n'.join(text) + '\n')
    plot(os.path.join(o.out, 'speed.svg'), o, results)
    print('\n' + '\n'.join(text) + f'\n\n{o.out}: report.md, speed.svg, results.json')
    if o.docs:
        write_docs(o, results)


def wrapped(line, width=100):
    """Lines of Markdown of at most `width` columns; a table's rows stay whole."""
    import textwrap
    if line.startswith('|'):
        return [line]
    return textwrap.wrap(line, width, subsequent_indent='  ' if line.startswith('- ') else '',
                         break_long_words=False, break_on_hyphens=False) or ['']


def write_docs(o, results):
    """Replaces what stands between the two marks of docs/caat.md, and the picture."""
    if results['settings']['quick'] or load_share(results) > 0.25:
        stop('docs/caat.md takes no figures of a --quick run, nor of a machine that did something else meanwhile')
    path = 'docs/caat.md'
    with open(path, encoding='utf-8') as f:
        before, mark, rest = f.read().partition('<!-- caat_speed.py: begin -->\n')
    after = rest.partition('<!-- caat_speed.py: end -->')
    if not mark or not after[1]:
        stop(f'{path} has lost the marks between which the figures stand')
    t = 4 if 4 in o.ranks else o.ranks[0]
    kind = kinds_of(o, 'training')[0]
    text = [caption(results), '', f'Training, t = {t}, {KIND_NAME[kind]}, {UNIT["training"]}. {legend()}', '']
    text += table(o, results, 'training', t, kind) + ['', '![speed-up](images/caat_speed.svg)', '']
    text += ['P = 0.5: times the ordinary model\'s speed, by phase and link:', ''] + summary(o, results, 0.5) + ['']
    text += list(verdict_lines(verdicts(o, results)))
    with open(path, 'w', encoding='utf-8') as f:
        f.write(before + mark + '\n' + '\n'.join(x for line in text for x in wrapped(line)) + '\n\n')
        f.write(after[1] + after[2])
    plot('docs/images/caat_speed.svg', o, results)
    print(f'{path}: section "Speed"; docs/images/caat_speed.svg')


# ---- The command line --------------------------------------------------------------------------------------------

def check_trainer(program, precision):
    """(Its version, whether its bf16 is slow); a trainer of another precision is refused."""
    try:
        text = subprocess.run([program, '--version'], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        stop(f'{program} does not run: dev/experiments/repro_caat.sh speed builds it')
    if f', {precision},' not in text:
        stop(f'{program} is not a trainer in {precision}: it says "{text.strip()}"')
    return text.split()[1].rstrip(','), precision == 'bf16' and 'AMX' not in text and 'BF16' not in text


def has_overlap(o):
    text = subprocess.run([o.trainer[o.precisions[0]], '--help'], capture_output=True, text=True, check=False).stdout
    return '--tp-comm-overlap' in text


def machine():
    with open('/proc/cpuinfo', encoding='utf-8') as f:
        model = re.search(r'model name\s*: (.*)', f.read())
    return f'{os.cpu_count()} cores of {model[1] if model else "an unknown processor"}'


def begin(o):
    """results.json, begun or continued; a folder of other settings is refused."""
    found = {p: check_trainer(o.trainer[p], p) for p in o.precisions}
    settings = {'model': MODEL, 'options': OPTIONS, 'ranks': o.ranks, 'precisions': o.precisions, 'quick': o.quick,
                'fractions': o.fractions, 'shares': o.shares, 'overlap': has_overlap(o), 'machine': machine(),
                'commit': found[o.precisions[0]][0], 'slow_bf16': any(x[1] for x in found.values())}
    results = read_json(o.results)
    if not results:
        return {'settings': dict(settings, date=time.strftime('%Y-%m-%d')), 'calibration': {}, 'runs': {}}
    different = [k for k, v in settings.items() if results['settings'].get(k) != v]
    if different:
        stop(f'{o.out} was begun with other settings ({", ".join(different)}): give another --out')
    return results


def numbers(text, option, of, fits, what):
    try:
        values = [of(x) for x in text.split(',')]
    except ValueError:
        values = []
    if not values or not all(map(fits, values)) or len(set(values)) < len(values):
        stop(f'{option} {text}: {what}')
    return values


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--out', default='repro_caat_speed', help='folder of the results [repro_caat_speed]')
    parser.add_argument('--ranks', help='tensor ranks [2,4,8; --quick: 2,4]')
    parser.add_argument('--precisions', default='fp32,bf16', help='[fp32,bf16]')
    parser.add_argument('--fractions', help='P [1,0.75,0.5,0.25,0; --quick: 0.5]')
    parser.add_argument('--rounds', type=int, help='[3; --quick: 1]')
    parser.add_argument('--quick', action='store_true', help='does everything work? One link and one P; a few minutes')
    parser.add_argument('--report', action='store_true', help='measure nothing')
    parser.add_argument('--docs', action='store_true', help='with --report: into docs/caat.md too')
    parser.add_argument('--trainer', default='train_gpt', metavar='PROGRAM', help='in float32 [train_gpt]')
    parser.add_argument('--trainer-bf16', default='build/bf16/train_gpt', metavar='PROGRAM', help='in bf16 '
                        '[build/bf16/train_gpt]')
    o = parser.parse_args()
    o.out = os.path.abspath(o.out)
    o.results = os.path.join(o.out, 'results.json')
    o.ranks = numbers(o.ranks or ('2,4' if o.quick else '2,4,8'), '--ranks', int, lambda t: t > 1 and HEADS % t == 0,
                      f'different numbers from 2 up that divide the {HEADS} heads')
    o.precisions = numbers(o.precisions, '--precisions', str, lambda p: p in ('fp32', 'bf16'), 'fp32 or bf16, or both')
    o.fractions = numbers(o.fractions or ('0.5' if o.quick else ','.join(f'{p:g}' for p in FRACTIONS)), '--fractions',
                          float, lambda p: 0 <= p <= 1, 'different numbers from 0 to 1')
    o.shares = [1.0] if o.quick else SHARES
    o.rounds = (1 if o.quick else 3) if o.rounds is None else o.rounds
    if o.rounds < 1:
        stop(f'--rounds {o.rounds}: from 1 up')
    if o.docs and not o.report:
        stop('--docs needs --report')
    o.trainer = {'fp32': os.path.abspath(os.path.join(PROJECT, o.trainer)),
                 'bf16': os.path.abspath(os.path.join(PROJECT, o.trainer_bf16))}
    return o


def main():
    o = parse()
    os.chdir(PROJECT)
    if o.report:
        results = read_json(o.results)
        for name in ('ranks', 'precisions', 'fractions', 'shares', 'overlap'):
            setattr(o, name, results['settings'][name] if results else None)
        return report(o, results)
    if os.geteuid() != 0:
        stop('making networks needs root')
    os.makedirs(o.out, exist_ok=True)
    results = begin(o)
    o.overlap = results['settings']['overlap']
    calibrate(o, results)
    measure_all(o, results)
    return report(o, results)


if __name__ == '__main__':
    sys.exit(runs.guarded(main))
