"""checks.py: what tests in Python share: checks that are counted, the closing line "N passed, N failed", runs of one
and of several ranks, what they read and write, and where the programs in Python are that are tested: import this first.
"""
import importlib.util, json, os, struct, subprocess, sys

sys.dont_write_bytecode = True  # of what is imported after this
ROOT = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../.."))
TRAIN = os.path.abspath(os.environ.get("TRAIN", "./train_gpt"))
sys.path += [os.path.join(ROOT, folder) for folder in ("scripts", "planner", "dev/bench", "dev/plot")]
passed = failed = 0


def check(ok, what):
    """Counts a check, and prints it."""
    global passed, failed
    passed, failed = passed + bool(ok), failed + (not ok)
    print('ok   ' if ok else 'FAIL ', what, flush=True)
    return ok


def near(x, y, relative=1e-12):
    return abs(x - y) <= relative * abs(y)


def finish():
    """Prints the closing line and ends the program: exit status 1 if a check failed."""
    print(f'{passed} passed, {failed} failed')
    sys.exit(failed > 0)


def needs(*modules):
    """What a test needs that may not be there: with --installed it only says so, by its exit status."""
    if sys.argv[1:] == ["--installed"]:
        sys.exit(not all(map(importlib.util.find_spec, modules)))


def launch(*command, ranks=1, **environment):
    """Runs a program, several ranks of it by mpirun, with one thread each; the result has what it printed."""
    mpirun = ["scripts/mpirun.sh", "-np", str(ranks)] if ranks > 1 else []
    return subprocess.run([*mpirun, *map(str, command)], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          errors="replace", timeout=600, env={**os.environ, "OMP_NUM_THREADS": "1", **environment})


def read(*path):
    with open("/".join(path), encoding="utf-8") as f:
        return f.read()


def read_log(folder):
    with open(f"{folder}/log.jsonl", encoding="utf-8") as f:
        return [json.loads(line) for line in f]


def read_safetensors(path):
    """{name: (dtype, shape, bytes)}"""
    with open(path, 'rb') as f:
        data = memoryview(f.read())
    end = 8 + struct.unpack('<Q', data[:8])[0]
    header = json.loads(bytes(data[8:end]))
    header.pop('__metadata__', None)
    return {name: (x['dtype'], tuple(x['shape']), data[end:][slice(*x['data_offsets'])]) for name, x in header.items()}


def write_shard(path, tokens):
    """As llm.c's data scripts do."""
    with open(path, "wb") as f:
        f.write(struct.pack(f"<256i{len(tokens)}H", 20240520, 1, len(tokens), *[0] * 253, *tokens))
