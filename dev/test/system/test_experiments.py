#!/usr/bin/env python3
"""test_experiments.py: dev/experiments/harness.py, by an experiment whose commands are of the shell: what is kept is
not run again, an interruption loses one run, a failure names its log, tables and verdicts have the right numbers."""
import os
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
EXPERIMENT = """
import sys
sys.path.insert(0, sys.argv.pop(1))
from harness import Experiment, best_rate, spread
e = Experiment('a test', lambda parser: parser.add_argument('--last', default='echo 4 >>{ran}; echo loss 4'))
read = lambda text: float(text.split()[1]) if text.startswith('loss') else None
commands = ['echo 1 >>{ran}; echo loss 1', 'echo 2 >>{ran}; [ -e {go} ] || exec sleep 60; echo loss 2', e.options.last]
values = [e.result(f'run {{i}}', ['sh', '-c', c], read) for i, c in enumerate(commands)]
e.table(['mean'], [[spread(values, 2)]])
for claim, a, b in (('near', [1.0, 1.2], [0.9, 1.1]), ('apart', [1.0, 1.2], [0.5, 0.7]), ('one', [1.0], [1.0])):
    e.lower_or_equal(claim, a, b)
print('best', *(best_rate(lambda rate: abs(rate - 20), rates) for rates in ([1, 2, 4], [64, 128], [8])))
e.close()
"""
held = []


def check(holds, what):
    held.append(holds)
    print(f'{"passed" if holds else "FAILED"}  {what}')


def main():
    with tempfile.TemporaryDirectory() as folder:
        ran, go, out, script = (f'{folder}/{name}' for name in ('ran', 'go', 'out', 'test.py'))
        with open(script, 'w', encoding='utf-8') as f:
            f.write(EXPERIMENT.format(ran=ran, go=go))
        command = [sys.executable, script, os.path.join(HERE, '../../experiments'), '--out', out]

        def runs():
            with open(ran, encoding='ascii') as f:
                return f.read().split()

        def again(*options):
            return subprocess.run([*command, *options], capture_output=True, text=True, check=False)

        p = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        while p.poll() is None and (not os.path.exists(ran) or len(runs()) < 2):
            time.sleep(0.01)
        p.send_signal(signal.SIGTERM)
        said = p.communicate(timeout=30)[1]
        check(p.returncode == 1 and 'interrupted' in said and runs() == ['1', '2'], 'stopped in the second of three')

        os.mkdir(go)
        bad = again('--last', 'printf bro; echo ken; exit 7')
        log = f'{out}/run_2.log'
        check(bad.returncode == 1 and 'exit status 7' in bad.stderr and log in bad.stderr and 'broken' in bad.stderr,
              'a command that fails is reported with its exit status, its log and what it said')
        with open(log, encoding='utf-8') as f:
            check(f.read() == 'broken\n', 'its log is kept')
        check(runs() == ['1', '2', '2'], 'the first run was not made again')
        check('"run 2" failed, exit status 0' in again('--last', 'echo no').stderr, 'so is output without a result')

        good = again()
        check(good.returncode == 0 and runs() == ['1', '2', '2', '4'] and '| 2.33 ± 1.53 |' in good.stdout,
              'the same command goes on, and prints mean and standard deviation')
        check([line.split(';')[0] for line in good.stdout.splitlines() if line.startswith('- ')]
              == ['- near: confirmed', '- apart: NOT CONFIRMED', '- one: not decided'], 'verdicts by twice the spread')
        check('best 16 16.0 8\n' in good.stdout, 'rates are tried until the best is not at an edge')
        check('is of another command' in again('--last', 'echo loss 5').stderr, 'another command is not mixed in')
    print(f'{sum(held)} passed, {len(held) - sum(held)} failed')
    return not all(held)


if __name__ == '__main__':
    sys.exit(main())
