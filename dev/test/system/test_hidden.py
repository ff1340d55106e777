#!/usr/bin/env python3
"""
test_hidden.py [--table]: dev/experiments/hidden.py: its table with known figures, what it reads of a launch, and
without --table a --quick run (root): late replicas have other threads at work, and no network is left.
"""
import contextlib
import io
import os
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
import checks
from checks import check

PROJECT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
SCRIPT = os.path.join(PROJECT, 'dev/experiments/hidden.py')
sys.path.insert(0, os.path.dirname(SCRIPT))
import hidden
import runs


def test_table():
    late = [{'ms': ms, 'cores': cores} for ms, cores in ((90, 0.1), (120, 0.5), (100, 0.2))]
    sync = [{'ms': ms, 'cores': 0} for ms in (150, 160, 170)]
    results = {'replicas': {n: {'computation': [70, 80, 99], 'sync': sync, 'delayed': late, 'dc-s3gd': late[:2]}
                            for n in ('4', '3', '2')}}
    rows = list(hidden.table(results))
    check(len(rows) == 5 and rows[3] == '| 3 | half a core | 80.0 ms | 160.0 ms | 100.0 ms, 75 %, 0.20 cores | '
          '105.0 ms, 69 %, 0.30 cores |', rows)
    lines = [f'step {i}/12 | loss 4 | {1000 if i <= hidden.SKIP else i} ms | 5 tok/s\n' for i in range(1, 13)]
    check(hidden.step_ms(lines) == (10.5, 0.042), hidden.step_ms(lines))
    check(hidden.step_ms(lines, 5 / 6)[0] == 9.5, 'the last sixth is left out')
    with contextlib.redirect_stderr(io.StringIO()):
        try:
            hidden.step_ms(lines[:hidden.SKIP])
            check(False, 'a launch without steps is refused')
        except SystemExit as e:
            check('does not run' in str(e.code), e.code)


def test_quick(folder):
    done = subprocess.run([SCRIPT, '--quick', '--out', folder], capture_output=True, text=True)
    results = runs.read_json(os.path.join(folder, 'results.json')) or {'replicas': {}}
    check(done.returncode == 0 and list(results['replicas']) == ['4', '3', '2'], done.stderr)
    for n, r in results['replicas'].items():
        own = 2 * (int(n) - 1) / int(n) * r['parameters'] * 32 / 1e6  # Mbit that a replica sends a step
        ms = own / r['mbit'] / hidden.GOODPUT * 1e3
        check(0.3 < ms / r['computation'][0] < 3, f'{n} replicas: {ms} ms to send beside {r["computation"]}')
        check(all(0 < r[mode][0]['cores'] < 2 for mode in ('delayed', 'dc-s3gd')), f'{n} replicas: their threads: {r}')
    again = subprocess.run([SCRIPT, '--report', '--out', folder], capture_output=True, text=True).stdout
    check(again and done.stdout.endswith(again), 'the report again')
    left = subprocess.run(['ip', 'netns', 'list'], capture_output=True, text=True).stdout
    check('threefold-net-' not in left, f'a network is left: {left}')


def main():
    test_table()
    if os.getuid() == 0 and '--table' not in sys.argv:
        with tempfile.TemporaryDirectory() as folder:
            test_quick(folder)
    checks.finish()


main()
