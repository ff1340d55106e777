"""runs.py: what experiments share that start many trainers, one after another: processes that end with this one, whole
JSON files, messages. guarded(main) runs such a program: on a signal or a failure it first ends what it has started."""
import json
import os
import signal
import subprocess
import sys

PROJECT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
child = []  # processes that this one has started


def stop(text):
    sys.exit(f'{os.path.basename(sys.argv[0])}: {text}')


def duration(seconds):
    minutes = round(seconds / 60)
    if minutes >= 60:
        return f'{minutes // 60}:{minutes % 60:02d} h'
    return f'{minutes} min' if seconds >= 90 else f'{seconds:.0f} s'


def end_children():
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # a second one would leave what the first one ends
    for p in child:
        if p.poll() is None:
            p.terminate()  # net_torus.sh takes its network down
    for p in child:
        p.wait()
    child.clear()


def start(command):
    # One thread a rank: in namespaces with host names of their own, ranks do not know that they share a machine's
    # cores.
    p = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                         env=dict(os.environ, OMP_NUM_THREADS='1'))
    child.append(p)
    return p


def lines_of(command, on_line=lambda line: None):
    """Runs it to its end. Returns its exit status and what it wrote."""
    p = start(command)
    lines = []
    for line in p.stdout:
        lines.append(line)
        on_line(line)
    p.wait()
    child.remove(p)
    return p.returncode, lines


def read_json(path):
    try:
        with open(path, encoding='utf-8') as f:
            return json.load(f)
    except (OSError, ValueError):
        return None


def write_json(path, value):
    with open(path + '.tmp', 'w', encoding='utf-8') as f:
        json.dump(value, f, indent=1)
    os.replace(path + '.tmp', path)


def on_signal(number, frame):
    raise KeyboardInterrupt


def guarded(main):
    signal.signal(signal.SIGTERM, on_signal)
    try:
        return main()
    except KeyboardInterrupt:
        end_children()
        return stop('interrupted; the same command continues after the last complete run')
    except BaseException:
        end_children()
        raise
