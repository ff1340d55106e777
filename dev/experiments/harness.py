"""harness.py: what the experiments share. An experiment runs commands, keeps what it reads of each one's output, and
prints tables and verdicts of what it has kept. A script begins one and asks for results:

    e = Experiment(__doc__)                       # --short: does everything work?; --out FOLDER: [build/SCRIPT]
    ms = e.result('ring 4', command, read)        # read(the command's output): what is kept, or None if it failed
    e.table(['all-reduce', 'ms'], [['ring', f'{ms:.1f}']])

OUT/results.json has every result beside its command, the machine, the date and the commit; so the same command line
goes on after an interruption, and prints the tables again without a run when all is there. A command that fails is
tried once more; then the experiment ends and names its log. OUT/report.md has what was printed."""
import argparse, json, math, os, re, signal, statistics, subprocess, sys, time

PROJECT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
UNLIMITED = 20000  # Mbit/s: a link that computation hides
GOODPUT = 8948 / 9014  # data in what a full packet of net.py is on the wire


def on_signal(number, _):
    sys.exit(f'interrupted by signal {number}; the same command goes on')


class Experiment:
    def __init__(self, about, options=lambda parser: None):
        name = os.path.splitext(os.path.basename(sys.argv[0]))[0]
        parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument('--short', action='store_true', help='does everything work? The figures say nothing')
        parser.add_argument('--out', help=f'folder of the results [build/{name}; with --short build/{name}_short]')
        options(parser)
        self.options = parser.parse_args()
        self.short = self.options.short
        self.out = os.path.abspath(self.options.out or f'{PROJECT}/build/{name}{"_short" if self.short else ""}')
        os.makedirs(self.out, exist_ok=True)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, on_signal)
        os.chdir(PROJECT)
        self.path, self.report, self.kept = f'{self.out}/results.json', f'{self.out}/report.md', {}
        if os.path.exists(self.path):
            with open(self.path, encoding='utf-8') as f:
                self.kept = json.load(f)
        with open(self.report, 'w', encoding='utf-8'):
            pass

    def build(self, *words):
        subprocess.run(['make', '-s', *words], check=True)

    def result(self, key, command, read, **environment):
        """What read() says of the command's output, now or when it was run before."""
        words = ' '.join(command)
        if key in self.kept:
            if self.kept[key]['command'] != words:
                sys.exit(f'{self.path}: "{key}" is of another command; give another --out')
            return self.kept[key]['result']
        log = f'{self.out}/{re.sub("[^A-Za-z0-9.]+", "_", key)}.log'
        for _ in range(2):  # Open MPI 4's mpirun crashes now and then
            began = time.time()
            status = self.run(command, log, environment)
            with open(log, encoding='utf-8', errors='replace') as f:
                text = f.read()
            found = read(text) if status == 0 else None
            if found is not None:
                break
        else:
            tail = '\n    '.join(text.splitlines()[-5:])
            sys.exit(f'"{key}" failed, exit status {status}; {log} ends with\n    {tail}\n  command: {words}')
        os.remove(log)
        self.kept[key] = dict(origin(), command=words, seconds=round(time.time() - began, 1), result=found)
        with open(self.path + '.tmp', 'w', encoding='utf-8') as f:
            json.dump(self.kept, f, indent=1)
        os.replace(self.path + '.tmp', self.path)
        print(f'{key}: {found if isinstance(found, (int, float)) else "done"} ({time.time() - began:.0f} s)',
              file=sys.stderr, flush=True)
        return found

    def run(self, command, log, environment):
        with open(log, 'w', encoding='utf-8') as f, subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=f, stderr=f, env=dict(os.environ, **environment)) as p:
            try:
                return p.wait()
            except BaseException:
                p.terminate()  # net.py takes its network down
                raise

    def say(self, text):
        print(text)
        with open(self.report, 'a', encoding='utf-8') as f:
            f.write(text + '\n')

    def table(self, head, rows):
        lines = [head, ['---'] * len(head), *rows]
        self.say('\n' + '\n'.join('| ' + ' | '.join(map(str, line)) + ' |' for line in lines) + '\n')

    def verdict(self, claim, holds, why):
        """holds None: not decided."""
        self.say(f'- {claim}: {"not decided" if holds is None else "confirmed" if holds else "NOT CONFIRMED"}; {why}')

    def lower_or_equal(self, claim, a, b):
        """Verdict: losses a are not higher than losses b by more than twice the standard deviation over seeds."""
        if min(len(a), len(b)) < 2:
            self.verdict(claim, None, 'needs two seeds of both')
            return
        apart = statistics.mean(a) - statistics.mean(b)
        sd = math.sqrt((statistics.variance(a) + statistics.variance(b)) / 2)
        self.verdict(claim, apart <= 2 * sd, f'loss {apart:+.4f} ({100 * apart / statistics.mean(b):+.2f} %), '
                     f'standard deviation over seeds {sd:.4f}')

    def close(self):
        """The last line of a report: where its results are from."""
        seen = [sorted({r[k] for r in self.kept.values()}) for k in ('machine', 'date', 'commit')]
        self.say('\n' + '; '.join(', '.join(x) for x in seen) + f'; {len(self.kept)} results in {self.path}')

    def plot(self, name, panels, log=False):
        """OUT/NAME.svg; panels: [(title, x's label, y's label, {label: (xs, ys, style)})]"""
        try:
            import matplotlib
        except ImportError:
            print('no picture: python3 has no matplotlib')
            return
        matplotlib.use('svg')
        from matplotlib import pyplot
        figure, axes = pyplot.subplots(1, len(panels), figsize=(4.6 * len(panels), 3.6), squeeze=False)
        for axis, (title, x, y, curves) in zip(axes[0], panels):
            for label, (xs, ys, style) in curves.items():
                axis.plot(xs, ys, style, label=label, markersize=4)
            axis.set(title=title, xlabel=x, ylabel=y, **({'xscale': 'log', 'yscale': 'log'} if log else {}))
            axis.grid(alpha=0.3)
        axes[0][-1].legend(fontsize=7)
        figure.tight_layout()
        figure.savefig(f'{self.out}/{name}.svg')
        print(f'picture: {self.out}/{name}.svg')


def origin():
    with open('/proc/cpuinfo', encoding='utf-8') as f:
        model = re.search(r'model name\s*: (.*)', f.read())
    commit = subprocess.run(['git', 'rev-parse', '--short', 'HEAD'], capture_output=True, text=True, check=False).stdout
    return {'machine': f'{os.cpu_count()} cores of {model[1] if model else "an unknown processor"}',
            'date': time.strftime('%Y-%m-%d'), 'commit': commit.strip() or 'unknown'}


def on_network(network, mbit, *options):
    """What stands before a command whose ranks are nodes of a network; one thread each, as they share the cores."""
    return ['dev/experiments/net.py', network, f'{mbit:g}', *options, '--', 'env', 'OMP_NUM_THREADS=1']


def spread(values, digits=4):
    values = list(values)
    sd = f' ± {statistics.stdev(values):.{digits}f}' if len(values) > 1 else ''
    return f'{statistics.mean(values):.{digits}f}{sd}'


def best_rate(loss, rates):
    """The learning rate with the lowest loss; while that is the lowest or highest one tried, half or twice of it is
    tried too. One rate is taken as it is."""
    seen = {rate: loss(rate) for rate in rates}
    while True:
        best = min(seen, key=seen.get)
        edge = best * 2 if best == max(seen) else best / 2 if best == min(seen) else None
        if edge is None or len(rates) == 1:
            return best
        seen[edge] = loss(edge)


def step_ms(text, skip=1):
    """The median of a training run's steps; the first one also opens connections."""
    times = [float(x) for x in re.findall(r'^step .*?([\d.]+) ms', text, re.M)][skip:]
    return statistics.median(times) if times else None
