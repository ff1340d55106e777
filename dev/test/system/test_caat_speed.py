#!/usr/bin/env python3
"""
test_caat_speed.py: dev/experiments/caat_speed.py with launches that a formula takes the place of, so that every figure
of the report is known; what it refuses; its commands; what it reads.

    test_caat_speed.py          without starting a trainer
    test_caat_speed.py --real   also its --quick run (root): stopped once, continued; no network may be left
"""
import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import types

sys.dont_write_bytecode = True
import checks
from checks import check

PROJECT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
SCRIPT = os.path.join(PROJECT, 'dev/experiments/caat_speed.py')
sys.path.insert(0, os.path.dirname(SCRIPT))
import caat_speed as speed

BLOCKS, ENDS, COMPUTATION = 32.0, 4.0, 100.0  # MB, ms

def refused(what, words, call):
    """call() ends with a message that has the words."""
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as err:
            call()
        check(False, f'{what}: is not refused')
    except SystemExit as e:
        text = str(e.code) + err.getvalue()
        check(e.code not in (0, None) and words in text, f'{what}: "{text}", expected "{words}"')


def options(folder, *words):
    sys.argv = [SCRIPT, '--out', os.path.join(folder, 'out'), *words]
    return speed.parse()


def text_of_steps(counted='28.318'):
    steps = ''.join(f'step {i}/4 | loss 5.0 | lr 1e-3 |   {ms:.1f} ms |  9 tok/s | 0 s left\n'
                    for i, ms in enumerate((900, 110, 100, 120), 1))
    return (f'{steps}traffic of a step, MB, all ranks together              counted      formula\n'
            f'  tensor    8 b s h (t-1)/t a layer                                 25.166\n'
            f'            embedding, head, norms, boundary                         3.152\n'
            f'            together                                   {counted}       28.318\n'
            f'  pipeline  b s h / t a boundary and direction          0.000        0.000\n')


DONE = 'done      256 tokens read in 0.1234 s, 16 written in 0.3000 s: 50.0 tokens/s\nsent      1600000 bytes by each\n'


def test_reading():
    got = speed.read_training(text_of_steps())
    check(got == {'ms': [110, 100, 120], 'blocks': 25.166, 'mb': 28.318}, f'steps are read: {got}')
    refused('bytes that are not the formula', '28.310 MB', lambda: speed.read_training(text_of_steps('28.310')))
    check(speed.read_training(text_of_steps().replace('step 4/4', '')) is None, 'a run without its last step')
    case = speed.case_of('decode', 4, speed.KINDS[0], None, None)
    got = speed.read_generated(case, DONE)
    check(abs(got['ms'][0] - 20) < 1e-9 and abs(got['mb'] - 0.4) < 1e-9, f'decoding is read: {got}')
    check(speed.read_generated(case, DONE.replace('16 written', '9 written')) is None, 'a text that ends early')
    got = speed.read_generated(case._replace(phase='prefill'), DONE.replace('16 written', '1 written'))
    check(abs(got['ms'][0] - 123.4) < 1e-9 and abs(got['mb'] - 6.4) < 1e-9, f'prefill is read: {got}')


def test_commands(folder):
    o = options(folder)
    os.makedirs(o.out, exist_ok=True)
    words = speed.command_of(o, speed.case_of('training', 4, speed.KINDS[2], 0.25, 1.0, True), 123.4)
    network = open(os.path.join(o.out, 'network.txt'), encoding='utf-8').read().splitlines()
    check(network == ['nodes 5 # the last one is the switch'] + [f'{r} 4 123.4 0' for r in range(4)],
          f'one cable from each node to the switch: {network}')
    text = ' '.join(words)
    for part in ('run 4 ', 'build/bf16/train_gpt', '--tp 4', '--caat-ranks 4', '--caat-fraction 0.25',
                 '--caat-grad-dtype same', '--tp-comm-overlap', f'--steps {speed.STEPS}'):
        check(part in text, f'{part} is in {text}')
    check(os.environ['NET_MTU'] == '65000' and os.environ['NET_BURST'] == '65014', 'long packets')
    text = ' '.join(speed.command_of(o, speed.case_of('decode', 2, speed.KINDS[0], None, 1.0), 5))
    check('--caat' not in text and 'overlap' not in text and 'bf16' not in text and '--generate a' in text,
          f'the ordinary model decodes: {text}')
    check(os.environ['NET_MTU'] == '576' and os.environ['NET_BURST'] == '590', 'short packets for decoding')


def test_refusals(folder):
    for words, message in (('--ranks 3', '--ranks 3'), ('--ranks 2,2', '--ranks 2,2'), ('--ranks two', '--ranks two'),
                           ('--ranks 1', '--ranks 1'), ('--precisions fp16', '--precisions fp16'),
                           ('--fractions 1.5', '--fractions 1.5'), ('--fractions nan', '--fractions nan'),
                           ('--rounds 0', '--rounds 0'), ('--docs', '--report'), ('--speed', '--speed')):
        refused(words, message, lambda: options(folder, *words.split()))
    refused('a program that is not there', 'nothing does not run', lambda: speed.check_trainer('./nothing', 'fp32'))
    program = os.path.join(folder, 'trainer')
    with open(program, 'w', encoding='utf-8') as f:
        f.write('#!/bin/sh\necho "train_gpt abc, bf16, by conversion to float32"\n')
    os.chmod(program, 0o755)
    refused('a trainer of another precision', 'not a trainer in fp32', lambda: speed.check_trainer(program, 'fp32'))
    check(speed.check_trainer(program, 'bf16') == ('abc', True), 'bf16 without instructions for it is said to be slow')
    refused('a report of nothing', 'no measurement', lambda: speed.report(options(folder, '--report'), None))


class Machine:
    """In place of launches: 0.8 of the communication is hidden with overlap; speeds[case]: a factor for one launch."""
    def __init__(self, stop_after=10**9):
        self.calls, self.stop_after, self.factor = [], stop_after, {}

    def measure(self, o, case, mbit):
        if len(self.calls) == self.stop_after:
            raise KeyboardInterrupt
        self.calls.append(case)
        floats = case.fraction is not None and case.grad == 'fp32' and case.phase == 'training'
        forward, backward = {'fp32': (1, 1), 'bf16': (0.5, 1 if floats else 0.5)}[case.precision]
        fraction = 1 if case.fraction is None else case.fraction
        blocks = BLOCKS * fraction * (forward + backward) / 2
        mb = blocks + ENDS
        mtu = speed.MTU[case.phase]
        wire = mb * 1e6 / case.t * 8 * (mtu + 14) / (mtu - 52) / (mbit * 1e3) if mbit < speed.UNLIMITED else 0
        ms = COMPUTATION + wire * (0.2 if case.overlap else 1)
        ms *= self.factor.get((case, self.calls.count(case)), 1)
        return {'ms': [ms], 'mb': mb, 'blocks': blocks, 'others': 0, 'seconds': 1.0}


def settings(**more):
    return dict({'model': speed.MODEL, 'machine': 'a formula', 'date': '2026-11-24', 'commit': 'abc', 'quick': False,
                 'slow_bf16': False}, **more)


def run(o, machine, results):
    real, speed.measure = speed.measure, machine.measure
    try:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            speed.calibrate(o, results)
            speed.measure_all(o, results)
    finally:
        speed.measure = real
    return out.getvalue()


def report(o, results):
    with contextlib.redirect_stdout(io.StringIO()):
        speed.report(o, results)
    return open(os.path.join(o.out, 'report.md'), encoding='utf-8').read()


def verdict(text, words):
    found = re.search(rf'^- {re.escape(words)}.*?: \*\*(.*?)\*\*\. (.*)$', text, re.M)
    return found.groups() if found else (None, f'there is no verdict "{words}"')


def test_figures(folder):
    """All of it, interrupted once."""
    o = options(folder, '--ranks', '2,8', '--rounds', '2', '--fractions', '1,0.5,0')
    o.overlap = True
    os.makedirs(o.out, exist_ok=True)
    plan = speed.cases_of(o)
    # phases x t x links x (ordinary and P's; for training also --tp-comm-overlap): fp32 6, bf16 10, inference 4
    check(len(plan) == len(set(plan)) == 2 * 4 * ((4 + 2) + (7 + 3)) + 2 * 2 * 2 * 4 * 4,
          f'{len(plan)} launches a round')
    first = Machine(stop_after=speed.CALIBRATIONS * 12 + 100)
    results = {'settings': settings(), 'calibration': {}, 'runs': {}}
    try:
        run(o, first, results)
        check(False, 'the interruption is lost')
    except KeyboardInterrupt:
        pass
    second = Machine()
    slow = speed.case_of('training', 8, speed.KINDS[0], 0.5, 0.25)
    second.factor[slow, 1] = 1.15  # its second round
    second.factor[speed.case_of('prefill', 2, speed.KINDS[0], 0.0, 4.0), 1] = 1.5  # its first
    results = speed.read_json(o.results)
    shown = run(o, second, results)
    check(len(second.calls) == 2 * len(plan) - 100, f'{len(second.calls)} launches after the interruption')
    check(all(len(results['runs'][speed.name_of(case)]) == 2 for case in plan), 'two rounds of everything')
    check('100 of them complete' in shown and '; 0 s left' in shown.splitlines()[-1], 'progress is shown')
    check(second.calls[-len(plan):] == plan, 'rounds follow each other')
    c = results['calibration']['training 8 bf16']
    case = speed.case_of('training', 8, speed.KINDS[2], None, 4.0)
    check(abs(speed.ms_of(results, case) / (5 * COMPUTATION) - 1) < 1e-3, 'link 4: 4 x computation is added to it')
    check(c['ms'] == COMPUTATION and c['mb'] == BLOCKS / 2 + ENDS, f'calibration: {c}')
    text = report(o, results)
    check(not re.search(r'\| - ', text) and '(None' not in text, 'every cell has a figure')
    row = re.search(r'^\| P = 0.5 .*$', text, re.M)[0]  # 20 of 36 MB
    check(row.split(' | ')[1:4] == ['20.000', '100.0', '113.9 (113.9) x1.10'], f'a row of training: {row}')
    check('155.6 (155.6) x1.29' in row and '322.2 (322.2) x1.55' in row, f'a row of training: {row}')
    test_verdicts(text)
    summary = re.search(r'^\| bf16, gradients summed in float32 \| 2 \|.*$', text, re.M)[0]
    # (16 + 4) / (8 + 4 + 4) MB in training, where the gradients stay in float32; (16 + 4) / (8 + 4) in prefill
    words = [x.strip() for x in summary.strip('|').split('|')]
    check(words[2:8] == ['1.04', '1.11', '1.19', '1.09', '1.25', '1.47'], f'the summary: {words}')
    test_docs(o, results)
    return o, results


def test_verdicts(text):
    word, why = verdict(text, 'Training is faster at P = 0.5: training, float32')
    check(word == 'NOT CONFIRMED' and 'not in every round: link 1/4 with t = 8 (0.95 to 1.10)' in why, f'{word}: {why}')
    word, why = verdict(text, 'Training is faster at P = 0.5: training, bf16, gradients summed in bf16')
    check(word == 'confirmed' and 'link 4: 1.47, 1.47' in why, f'{word}: {why}')
    word, why = verdict(text, 'Half the traffic at P = 0.5, float32')
    check(word == 'confirmed' and '0.500 of' in why and '0.556 with' in why, f'{word}: {why}')
    word, why = verdict(text, 'Half the traffic at P = 0.5, bf16, gradients summed in float32')
    check(word == 'NOT CONFIRMED' and '0.750 of' in why, f'{word}: {why}')
    word, why = verdict(text, '--tp-comm-overlap hides 70 % of what links of 1/4 add, ordinary model, float32')
    check(word == 'confirmed' and 'Link 1/4: 80 %, 80 %' in why, f'{word}: {why}')
    word, why = verdict(text, 'Computation + bytes / rate is the time within 15 %: decode')
    check(word == 'confirmed' and '+0 %' in why.replace('-0 %', '+0 %'), f'{word}: {why}')
    word, why = verdict(text, 'Computation + bytes / rate is the time within 15 %: prefill')
    check(word == 'NOT CONFIRMED' and '+25 %' in why, f'{word}: {why}')


def test_docs(o, results):
    o.docs, there = True, os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            os.makedirs('docs/images')
            page = '# A\n<!-- caat_speed.py: begin -->\nold\n<!-- caat_speed.py: end -->\nafter\n'
            with open('docs/caat.md', 'w', encoding='utf-8') as f:
                f.write(page)
            quick = dict(results, settings=settings(quick=True))
            refused('figures of --quick', '--quick', lambda: speed.write_docs(o, quick))
            loaded = json.loads(json.dumps(results))
            for k in loaded['runs'].values():
                k[0]['others'] = 2
            refused('figures of a machine with other work', 'something else', lambda: speed.write_docs(o, loaded))
            check(open('docs/caat.md', encoding='utf-8').read() == page, 'a refused page stays as it was')
            report(o, results)
            new = open('docs/caat.md', encoding='utf-8').read()
            check(new.startswith('# A\n<!-- caat_speed.py: begin -->\n') and new.endswith(
                '<!-- caat_speed.py: end -->\nafter\n') and 'old' not in new, 'the page around the figures stays')
            check(all(x in new for x in ('commit abc', '(images/caat_speed.svg)', 'x1.10', '**NOT CONFIRMED**')),
                  'figures, picture and verdicts are in the page')
            check(max(len(x) for x in new.splitlines() if not x.startswith('|')) <= 100, 'lines of 100 columns')
            picture = open('docs/images/caat_speed.svg', encoding='utf-8').read()
            check(picture.count('<polyline') == 36 and picture.endswith('</svg>\n'), 'a curve for each panel, t, type')
            with open('docs/caat.md', 'w', encoding='utf-8') as f:
                f.write('# A\n')
            refused('a page without marks', 'marks', lambda: speed.write_docs(o, results))
        finally:
            os.chdir(there)
            o.docs = False


def test_launches(folder):
    """A launch that fails once is repeated, one that fails twice ends the experiment; others' settings are refused."""
    o = options(folder)
    case = speed.case_of('training', 2, speed.KINDS[0], None, None)
    counter = os.path.join(folder, 'count')
    program = os.path.join(folder, 'launch')
    with open(os.path.join(folder, 'steps'), 'w', encoding='utf-8') as f:
        f.write(text_of_steps())
    with open(program, 'w', encoding='utf-8') as f:
        f.write(f'#!/bin/sh\necho x >>{counter}\ncat {folder}/steps\necho "train_gpt: no" >&2\n'
                f'[ $(wc -l <{counter}) -ge $1 ]\n')
    os.chmod(program, 0o755)
    real, speed.command_of = speed.command_of, lambda o, case, mbit: [program, str(mbit)]
    try:
        check(speed.measure(o, case, 2)['mb'] == 28.318, 'a launch that fails once is repeated')
        check(open(counter, encoding='ascii').read() == 'x\nx\n', 'it is started twice')
        refused('a launch that fails', 'train_gpt: no', lambda: speed.measure(o, case, 5))
        check('together' in open(os.path.join(o.out, 'output.txt'), encoding='utf-8').read(), 'what it wrote is kept')
    finally:
        speed.command_of = real
    check(not speed.runs.child, 'no process is left')
    o.trainer = {'fp32': os.path.join(folder, 'trainer'), 'bf16': os.path.join(folder, 'trainer')}
    o.precisions = ['bf16']
    results = speed.begin(types.SimpleNamespace(**dict(vars(o), results=os.path.join(folder, 'new.json'))))
    speed.write_json(o.results, results)
    check(speed.begin(o) == results, 'the same settings continue')
    o.ranks = [2]
    refused('a folder of other settings', 'other settings (ranks)', lambda: speed.begin(o))


def test_real(folder):
    """--quick: SIGTERM, then the rest; afterwards no network is there."""
    out = os.path.join(folder, 'quick')
    names = subprocess.run(['ip', 'netns', 'list'], capture_output=True, text=True, check=False)
    if os.geteuid() != 0 or names.returncode != 0 or 'threefold-net' in names.stdout:
        print('left out: real launches need root, iproute2, and no other network of dev/experiments/net_torus.sh')
        return
    command = [SCRIPT, '--quick', '--out', out]
    first = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    for line in first.stdout:
        if line.startswith('[5/'):
            break
        if 'net_torus.sh' in line:
            print(f'left out: real launches ({line.strip()})')
            first.wait()
            return
    time.sleep(0.5)
    first.send_signal(signal.SIGTERM)
    rest = first.communicate(timeout=60)[0]
    check(first.returncode != 0 and 'interrupted' in rest, f'SIGTERM: {rest[-300:]}')
    left = subprocess.run(['ip', 'netns', 'list'], capture_output=True, text=True, check=True).stdout
    check('threefold-net' not in left, f'no network is left: {left}')
    second = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False)
    check(second.returncode == 0 and re.search(r'72 launches, [5-9] of them complete', second.stdout),
          f'continued: {second.stdout[:300]} {second.stderr[-300:]}')
    text = open(os.path.join(out, 'report.md'), encoding='utf-8').read()
    check(not re.search(r'\| - ', text), f'every cell has a figure: {text}')
    check(verdict(text, 'Half the traffic at P = 0.5, float32')[0] == 'confirmed', 'half the bytes in the blocks')
    check(verdict(text, 'Half the traffic at P = 0.5, bf16, gradients summed in float32')[0] == 'NOT CONFIRMED',
          'three quarters with float32 gradients')
    mb = re.search(r'^Decode, t = 4, float32.*?\| ordinary \| ([\d.]+) ', text, re.M | re.S)
    # 8 sums of 768 channels and one at the embedding, 2 x 3/4 of them from each rank, and logits for 256 tokens
    check(mb and abs(float(mb[1]) - (9 * 768 * 1.5 + 256 * 0.75) * 4 * 4e-6) < 0.002, f'bytes of a token: {mb}')


def main():
    os.chdir(PROJECT)
    with tempfile.TemporaryDirectory() as folder:
        test_reading()
        test_commands(folder)
        test_refusals(folder)
        test_figures(folder)
        test_launches(folder)
        if sys.argv_real[1:] == ['--real']:
            test_real(folder)
    checks.finish()


if __name__ == '__main__':
    sys.argv_real = list(sys.argv)
    sys.exit(main())
