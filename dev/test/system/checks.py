"""checks.py: what tests in Python share: checks that are counted, and the closing line "N passed, N failed"."""
import sys

passed = failed = 0


def check(ok, what):
    """Counts a check, and prints it."""
    global passed, failed
    passed, failed = passed + bool(ok), failed + (not ok)
    print('ok   ' if ok else 'FAIL ', what, flush=True)
    return ok


def finish():
    """Prints the closing line and ends the program: exit status 1 if a check failed."""
    print(f'{passed} passed, {failed} failed')
    sys.exit(failed > 0)
