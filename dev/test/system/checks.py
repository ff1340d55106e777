"""checks.py: what tests in Python share: checks that are counted, the closing line "N passed, N failed", runs of one
and of several ranks, and a reader of safetensors."""
import json, os, signal, struct, subprocess, sys, time

passed = failed = 0


def check(ok, what):
    """Counts a check, and prints it."""
    global passed, failed
    passed, failed = passed + bool(ok), failed + (not ok)
    print('ok   ' if ok else 'FAIL ', what, flush=True)
    return ok


def check_interrupt(process, folder):
    """SIGTERM once the folder is there: an experiment ends, and says how it continues."""
    while process.poll() is None and not os.path.isdir(folder):
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    check('the same command' in process.communicate()[0] and process.returncode == 1, 'a signal')


def finish():
    """Prints the closing line and ends the program: exit status 1 if a check failed."""
    print(f'{passed} passed, {failed} failed')
    sys.exit(failed > 0)


def launch(*command, ranks=1, **environment):
    """Runs a program, several ranks of it by mpirun, with one thread each; the result has what it printed."""
    mpirun = ["scripts/mpirun.sh", "-np", str(ranks)] if ranks > 1 else []
    return subprocess.run([*mpirun, *map(str, command)], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          errors="replace", timeout=600, env={**os.environ, "OMP_NUM_THREADS": "1", **environment})


def read_safetensors(path):
    """{name: (dtype, shape, bytes)}"""
    with open(path, 'rb') as f:
        data = memoryview(f.read())
    end = 8 + struct.unpack('<Q', data[:8])[0]
    header = json.loads(bytes(data[8:end]))
    header.pop('__metadata__', None)
    return {name: (x['dtype'], tuple(x['shape']), data[end:][slice(*x['data_offsets'])]) for name, x in header.items()}
