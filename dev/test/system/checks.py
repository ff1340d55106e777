"""checks.py: what tests in Python share: checks that are counted, and the closing line "N passed, N failed"."""
import sys

passed = failed = 0


def check(ok, what):
    """Counts a check; says what failed."""
    global passed, failed
    passed, failed = passed + bool(ok), failed + (not ok)
    if not ok:
        print(f'FAIL  {what}')


def finish():
    """Prints the closing line and ends the program: exit status 1 if a check failed."""
    print(f'{passed} passed, {failed} failed')
    sys.exit(failed > 0)
