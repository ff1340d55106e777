#!/usr/bin/env python3
"""planner/judge.py [published|figures [N]]: ./plan beside published runs.

    planner/judge.py published      errors of speed, by software and by machine, of the rows of each use; sweeps
    planner/judge.py rows WORD      the rows of sources with this word: ours, published, error, use, options
    planner/judge.py figures [N]    figures 11 to 18 of Narayanan et al. 2021: ours beside the published points

The runs are those of published.tsv, whose first lines explain them, and figures.tsv; PLAN names another ./plan.
Errors are of speed: above 0 the prediction is too fast. A sweep has many layouts of one model on one machine: is the
one that is fastest here the one that was?
"""
import os, re, statistics, subprocess, sys

HERE = os.path.dirname(os.path.abspath(__file__))
USES = ("calibration", "choosing", "judging", "outside")


class Run:
    """A line of ./plan --runs."""
    def __init__(self, line):
        self.source, self.use, self.name, self.unit, published, *ours, self.options = line.rstrip("\n").split("\t")
        self.ours, self.memory = map(float, ours)  # of the room that there is
        self.published = None if published == "-" else float(published)

    def option(self, name):
        return re.search(rf"--{name} (\S+)", self.options).group(1)

    def error(self):
        """Of speed."""
        return (self.published / self.ours if self.unit == "s" else self.ours / self.published) - 1


def runs_of(name):
    plan = os.environ.get("PLAN", os.path.join(HERE, "..", "plan"))
    made = subprocess.run([plan, "--runs", os.path.join(HERE, name)], stdout=subprocess.PIPE, text=True, check=True)
    return [Run(line) for line in made.stdout.splitlines()]


def print_errors(name, runs):
    for use in USES:
        errors = [100 * run.error() for run in runs if run.use == use]
        if errors:
            print(f"    {name:20} {use:12} {len(errors):3} runs, error {statistics.mean(map(abs, errors)):4.1f} %, "
                  f"signed {statistics.mean(errors):+5.1f} %, largest {max(map(abs, errors)):4.1f} %")


def layout(run):
    return f"t{run.option('tp')} p{run.option('pp')} micro-batch {run.option('micro-batch')}"


def print_sweep(source, runs):
    best, picked = min(runs, key=lambda run: run.published), min(runs, key=lambda run: run.ours)
    loss = 100 * (picked.published / best.published - 1)
    print(f"    {source.split(' (')[0]:50} {len(runs):2}, picked {layout(picked)}: {loss:+.1f} % beside the best, "
          f"{layout(best)}")


def by(runs, key):
    groups = {}
    for run in runs:
        groups.setdefault(key(run), []).append(run)
    return groups


def published():
    runs = runs_of("published.tsv")
    print("layouts of published sweeps")
    for source, group in by(runs, lambda run: run.source).items():
        if source.startswith("Hagemann"):
            print_sweep(source, group)
    print("\nerrors of speed; above 0: the prediction is too fast")
    print_errors("all", runs)
    print_errors("megatron", [run for run in runs if run.option("software").startswith("megatron")])
    for option in "software", "cluster":
        for name, group in by(runs, lambda run: run.option(option)).items():
            print_errors(name, group)
    ours = [run for run in runs if " as d " not in run.name]  # context parallelism has half the memory
    print(f"\n{sum(run.memory > 1 for run in ours)} of {len(ours)} runs would be refused for lack of memory")
    for run in ours:
        if run.memory > 1:
            print(f"    {run.memory:.2f} of the room: {run.source}, {run.name}: {run.options}")


def rows(word):
    for run in runs_of("published.tsv"):
        if word in run.source:
            print(f"{run.source}, {run.name}: {run.ours:.4g}, published {run.published:.4g} {run.unit}, "
                  f"{100 * run.error():+.1f} %, {run.use}: ./plan {run.options}")


def figures(number=None):
    groups = by(runs_of("figures.tsv"), lambda run: run.source)
    for source, runs in groups.items():
        if number and not source.startswith(f"figure {number}:"):
            continue
        print(f"{source}, {runs[0].unit}")
        for run in runs:
            beside = "        -         -"
            if run.published:
                beside = f"{run.published:9.0f}  {100 * run.error():+5.1f} %"
            print(f"    {run.use:18} {run.name:>14} {run.ours:8.{3 if run.ours < 10 else 1}f}  {beside}  {run.options}")
        errors = [100 * run.error() for run in runs if run.published]
        if errors:
            print(f"    {len(errors)} published points: error {statistics.mean(map(abs, errors)):.1f} %, "
                  f"signed {statistics.mean(errors):+.1f} %")


if __name__ == "__main__":
    modes = {"published": published, "rows": rows, "figures": figures}
    if len(sys.argv) < 2 or sys.argv[1] not in modes:
        sys.exit(__doc__)
    modes[sys.argv[1]](*sys.argv[2:])
