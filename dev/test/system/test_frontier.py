#!/usr/bin/env python3
"""
test_frontier.py [TRAINER]: dev/experiments/frontier.py: its rules with known figures, and a --quick run of some of its
configurations: stopped once and continued. MuLoCo is among them where the trainer has --optimizer muon.
"""
import math
import os
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
import checks
from checks import check, check_interrupt

PROJECT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
SCRIPT = os.path.join(PROJECT, 'dev/experiments/frontier.py')
TRAINER = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else os.path.join(PROJECT, 'train_gpt'))
sys.path.insert(0, os.path.dirname(SCRIPT))
import frontier
import runs
import tuned


def run(loss, sent):
    return tuned.summary([{'loss': 5.0, 'val_loss': None, 'tokens': 64, 'comm_bytes': {'dp': sent}},
                          {'loss': 4.0, 'val_loss': loss, 'tokens': 64, 'comm_bytes': {'dp': 0}}])


def test_rules():
    found = {'adamw': {1: run(2.00, 6000), 2: run(2.02, 6000)}, 'diloco': {1: run(2.01, 61), 2: run(2.03, 61)},
             'muloco': {1: run(2.00, 60), 2: run(2.02, 60)}, 'muloco-4': {1: run(2.03, 9), 2: run(2.0310, 9)},
             'sparse-32': {1: run(2.0299, 1), 2: run(2.0299, 1)}, 'sparse-128': {1: run(1.9, 2)}}
    claims = {words.split(':')[0]: holds for words, holds, _ in frontier.verdicts(found)}
    wanted = {'DiLoCo, AdamW': False, 'MuLoCo': True, 'MuLoCo, 4 bits': False, 'SparseLoCo, 32 of 4096': True,
              'SparseLoCo, 128 of 4096': None, 'MuLoCo, 2 bits': None, 'The target is reached': True,
              '4 bits lose nothing': False, '2 bits lose nothing': None}
    got = {words: claims.get(words) for words in wanted}
    check(got == wanted, f'verdicts: {got}')
    check(frontier.per_step(found, 'diloco') == 30.5 and math.isclose(frontier.fewer(found, 'muloco'), 100), 'bytes')
    check(frontier.fewer(found, 'muon') is None, 'bytes of no run')
    found |= {'muon': {1: run(1.90, 6000), 2: run(1.92, 6000)}, 'muloco-2': {1: run(1.97, 30), 2: run(1.99, 30)}}
    claims = {words: holds for words, holds, _ in frontier.verdicts(found)}
    got = [claims[words] for words in ('Muon is as good as AdamW', 'MuLoCo, 2 bits, loses nothing to Muon')]
    check(got == [True, False], f'Muon before MuLoCo before AdamW: {got}')
    check(tuned.rate_of_key('sweep/diloco-0.002', 'diloco') == 0.002, 'the rate of a run')
    check(tuned.rate_of_key('sweep/diloco-2-0.002', 'diloco') is None, 'the rate of another configuration')
    check(tuned.rate_of_key('sweep/diloco-0.002.part', 'diloco') is None, 'the rate of a run that is not complete')


def launch(out, *options):
    return subprocess.Popen([SCRIPT, '--quick', '--out', out, '--trainer', TRAINER, *options], stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True)


def test_quick(folder):
    whole, cut = os.path.join(folder, 'whole'), os.path.join(folder, 'cut')
    has_muon = subprocess.run([TRAINER, '--optimizer', 'muon', '--dry-run'], capture_output=True).returncode == 0
    names = ['adamw', 'diloco', 'sparse-32'] + (['muloco-2'] if has_muon else [])
    p = launch(whole, '--only', ','.join(names))
    text = p.communicate()[0]
    results = runs.read_json(os.path.join(whole, 'results.json')) or {'runs': {}, 'rates': {}}
    check(p.returncode == 0 and set(results['runs']) == set(names), f'--quick: {text[-500:]}')
    check(all(len(results['rates'].get(n, {})) == 4 for n in names), 'four rates each')
    logs = {n: runs.read_log(os.path.join(whole, f'{n}-2')) for n in names}
    sent = {n: sum(r['comm_bytes']['dp'] for r in rows) for n, rows in logs.items()}
    check(0 < sent['sparse-32'] < sent['diloco'] == sent['adamw'] / frontier.QUICK_PERIOD, f'bytes: {sent}')
    check('| SparseLoCo, 32 of 4096 | ' in text and 'The target is reached' in text, 'table and verdicts')
    check_interrupt(launch(cut, '--only', 'sparse-32'), os.path.join(cut, 'sparse-32-1.part'))
    p = launch(cut, '--only', 'sparse-32')
    p.communicate()
    again = (runs.read_json(os.path.join(cut, 'results.json')) or {'runs': {}})['runs']
    same = again.get('sparse-32') == results['runs'].get('sparse-32')
    check(p.returncode == 0 and same, 'the same losses, continued')


with tempfile.TemporaryDirectory() as temporary:
    test_rules()
    test_quick(temporary)
checks.finish()
