#!/usr/bin/env python3
"""
test_caat_quality.py [TRAINER]: dev/experiments/caat_quality.py: its rules with known figures, its text from a small
tree, and its --quick run: stopped once and continued, and spread over two folders by a record.
"""
import math
import os
import shutil
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
import checks
from checks import check, check_interrupt

PROJECT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
SCRIPT = os.path.join(PROJECT, 'dev/experiments/caat_quality.py')
TRAINER = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else os.path.join(PROJECT, 'train_gpt'))
sys.path.insert(0, os.path.dirname(SCRIPT))
import caat_quality as quality
import tuned
import runs


def rows(loss, first=5.0):
    return tuned.summary([{'loss': first, 'val_loss': None, 'tokens': 64},
                            {'loss': 4.0, 'val_loss': loss, 'tokens': 64}])


def test_rules():
    check(tuned.next_rate({1: 3.0, 2: 2.0, 4: 2.5}) is None, 'a best rate between others')
    check(tuned.next_rate({1: 3.0, 2: 2.0}) == 4, 'the best rate is the highest')
    check(tuned.next_rate({1: 2.0, 2: 3.0}) == 0.5, 'the best rate is the lowest')
    got = runs.compare([2.0, 2.2], [1.0, 1.4])  # variances 0.02 and 0.08
    check(math.isclose(got.spread, math.sqrt(0.05)) and got.sign == 1, 'a higher loss')
    check(math.isclose(got.delta, 0.9) and math.isclose(got.percent, 75), 'by how much')
    check(runs.compare([1.4, 1.8], [1.0, 1.4]).sign == 0, 'no difference beyond the spread')
    check(runs.compare([1.0], [1.0, 1.1]) is None, 'one seed decides nothing')
    found = {'ordinary': {1: rows(2.00), 2: rows(2.02)}, 'n4-half': {1: rows(2.01), 2: rows(2.03)},
             'n4-quarter': {1: rows(2.30), 2: rows(2.32)}, 'n2-half': {1: rows(1.80), 2: rows(1.82)}}
    claims = [holds for _, holds, _ in quality.verdicts(found, 1e-4)]
    check(claims == [None, True, True, None, None, False, None, True], f'verdicts: {claims}')
    del found['n2-half']
    check([holds for _, holds, _ in quality.verdicts(found, 1e-4)][-1] is False, 'no configuration is better')
    for first, same in ((5.0 * (1 + 0.9e-4), True), (5.0 * (1 - 1.1e-4), False)):
        found['n4-all'] = {1: rows(2.0, first)}
        check(quality.same_function(found, 1e-4)[1] is same, f'P = 1, first loss {first}')


def test_text(folder):
    for name, size in (('fs/a.c', 700), ('mm/b.h', 600), ('arch/c.c', 900), ('fs/d.png', 900)):
        os.makedirs(os.path.dirname(os.path.join(folder, name)), exist_ok=True)
        with open(os.path.join(folder, name), 'w', encoding='ascii') as f:
            f.write(name[3] * size)
    path, tuned.SIZE = os.path.join(folder, 'text'), 1000
    tuned.make_text(folder, path)
    with open(path, encoding='ascii') as f:
        text = f.read()
    check(text == ('b' * 600 + 'a' * 400 if text[0] == 'b' else 'a' * 700 + 'b' * 300), 'the text of two files')
    tuned.SIZE = 1301
    try:
        tuned.make_text(folder, path)
        check(False, 'a text that is too short')
    except SystemExit as e:
        check('too few sources: 1 bytes' in str(e), f'a text that is too short: {e}')


def launch(out, *options, **more):
    return subprocess.Popen([SCRIPT, '--quick', '--out', out, '--trainer', TRAINER, *options], stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True, **more)


def test_quick(folder):
    whole, cut = os.path.join(folder, 'whole'), os.path.join(folder, 'cut')
    p = launch(whole)
    text = p.communicate()[0]
    results = runs.read_json(os.path.join(whole, 'results.json')) or {'runs': {}, 'rates': {}, 'claims': [{}]}
    check(p.returncode == 0 and set(results['runs']) == set(quality.LABEL), f'--quick: {text[-500:]}')
    check(results['claims'][0].get('confirmed') is True, 'P = 1 is the ordinary model')
    check(all(len(r) == 4 for n, r in results['rates'].items() if n != 'n4-all'), 'four rates each')
    for name in ('ordinary', 'n8-quarter'):
        options = runs.read_json(os.path.join(whole, f'{name}-2', 'options.json')) or ['--lr', '']
        rates = results['rates'].get(name)
        check(rates and options[options.index('--lr') + 1] == min(rates, key=rates.get), f'{name}: the best rate')
    p = launch(whole)
    check('seed' not in p.communicate()[0].split('37024 parameters')[0], 'what is complete is not repeated')
    p = launch(whole, '--data', SCRIPT)
    check('other settings (text)' in p.communicate()[0] and p.returncode == 1, 'another text in the same folder')
    check_interrupt(launch(cut, '--jobs', '1'), os.path.join(cut, 'n4-quarter-1.part'))
    p = launch(cut, '--only', 'ordinary,n4-quarter')
    p.communicate()
    again = (runs.read_json(os.path.join(cut, 'results.json')) or {'runs': {}})['runs']
    check(all(again.get(n) == results['runs'][n] for n in ('ordinary', 'n4-quarter')), 'the same losses, continued')
    check(p.returncode == 0, 'it continues')
    test_record(folder, results)


# What a record has is not made again, in whatever folder, and the report is of both.
def test_record(folder, results):
    record, out = os.path.join(folder, 'record.json'), os.path.join(folder, 'first')
    options = ['--record', record, '--seeds', '1', '--only']
    launch(out, *options, 'ordinary').communicate()
    shutil.rmtree(out)
    p = launch(out, *options, 'ordinary,n4-half')
    text = p.communicate()[0]
    check('ordinary, seed' not in text and 'N = 4, P = 0.5, seed 1' in text, f'only what is missing: {text[:200]}')
    again = (runs.read_json(os.path.join(out, 'results.json')) or {'runs': {}})['runs']
    check(all(again.get(n, {}).get('1') == results['runs'][n]['1'] for n in ('ordinary', 'n4-half')),
          'a record has the same losses')
    launch(out, *options, 'ordinary,n4-half', '--short').communicate()
    lengths = [runs.read_json(record)['runs'][key]['steps'] for key in ('n4-half-1', 'short/n4-half-1')]
    short = (runs.read_json(os.path.join(out, 'short/results.json')) or {'runs': {'n4-half': {}}})['runs']['n4-half']
    check(lengths == [32, 4] and short.get('1', 0) > again['n4-half']['1'], f'--short: steps {lengths}, losses {short}')
    shutil.rmtree(out)
    p = launch(out, *options, 'ordinary,n4-half', '--report')
    check('| ordinary | 1 |' in p.communicate()[0] and p.returncode == 0, 'a report of a record alone')
    data = runs.read_json(record)
    data['runs']['ordinary-1']['options'] += ' --dropout 0'
    runs.write_json(record, data)
    p = launch(out, *options, 'ordinary')
    check('ordinary, seed 1' in p.communicate()[0], 'a run with other options is made')
    p = launch(out, *options, 'ordinary', '--data', SCRIPT)
    check('other settings (text)' in p.communicate()[0] and p.returncode == 1, 'another text in the same record')


with tempfile.TemporaryDirectory() as temporary:
    test_rules()
    test_text(os.path.join(temporary, 'tree'))
    test_quick(temporary)
checks.finish()
