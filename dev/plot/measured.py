#!/usr/bin/env python3
"""measured.py: a pipeline's steps as they ran beside those that its schedule's table predicts, in ms; the bubble.

    scripts/mpirun.sh -np 2 ./train_gpt --pp 2 --schedule zb-v --trace trace.json --steps 12
    dev/plot/measured.py trace.json

Of every step but the first: the mean time of each kind of pass on each virtual stage, and of the messages that a stage
has waited for, are the costs at which build/tables predicts its timeline; what comes before the first pass (zeros) and
after the last one (sums, updates) is added. The bubble is all that is not a pass, divided by the passes. Medians of the
steps. Standard library only.
"""
import collections, json, math, os, re, statistics, subprocess, sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
PASSES = ("forward", "backward", "backward input half", "backward weight half")
Span = collections.namedtuple("Span", "stage kind chunk micro_batch start end")  # a row of build/tables schedule
Step = collections.namedtuple("Step", "number stages passes")  # stages: {stage: (begin, end)}; passes: spans by start


def text_of(*options):
    """What build/tables prints"""
    tool = os.path.join(ROOT, os.environ.get("BUILD", "build"), "tables")
    return subprocess.run([tool, *map(str, options)], stdout=subprocess.PIPE, text=True, check=True).stdout


def rows_of(text):
    """The rows of a table as tuples with names; its comment"""
    heads, *lines = [line.split("\t") for line in text.splitlines() if line[:1] != "#"]
    row = collections.namedtuple("Row", heads)
    number = {True: int, False: float}
    rows = [row(*(number[x.lstrip("-").isdigit()](x) if re.fullmatch(r"-?[\d.]+(e[-+]\d+)?", x) else x for x in line))
            for line in lines]
    return rows, "".join(line[2:] for line in text.splitlines() if line[:1] == "#")


def table(*options):
    return rows_of(text_of(*options))


def spans_of(path, rank):
    """What the trace says of the run; (number, start, track, name, end) in ms of the ranks whose name has the pattern
    `rank`, which holds a number, by start"""
    with open(path, encoding="utf-8") as f:
        trace = json.load(f)
    names = {(e["name"], e["pid"], e["tid"]): e["args"].get("name", "") for e in trace["traceEvents"] if e["ph"] == "M"}
    ranks = {pid: int(re.match(rank, name)[1]) for (what, pid, _), name in names.items()
             if what == "process_name" and re.match(rank, name)}
    return trace["otherData"], sorted(
        (ranks[e["pid"]], e["ts"] / 1e3, names["thread_name", e["pid"], e["tid"]].split()[0], e["name"],
         (e["ts"] + e["dur"]) / 1e3) for e in trace["traceEvents"] if e["ph"] == "X" and e["pid"] in ranks)


def read(path):
    """What the trace says of the run, and its steps, of the stages' ranks with t = d = 0"""
    run, spans = spans_of(path, r"rank \d+: t 0 p (\d+) d 0")
    steps = collections.defaultdict(lambda: Step(0, {}, []))
    for stage, start, track, name, end in spans:
        if track == "step":
            number = int(name.split()[1])
            steps[number] = steps[number]._replace(number=number)
            steps[number].stages[stage] = start, end
    for stage, start, track, name, end in spans:
        found = re.fullmatch(rf"(?:chunk (\d+) )?({'|'.join(PASSES)}) (\d+)", name)
        step = [s for s in steps.values() if stage in s.stages and s.stages[stage][0] <= start < s.stages[stage][1]]
        if track == "compute" and found and step:
            step[0].passes.append(Span(stage, found[2], int(found[1] or 0), int(found[3]), start, end))
    return run, [steps[n] for n in sorted(steps) if len(steps[n].stages) == run["p"]]


def length_of(step):
    return max(end - begin for begin, end in step.stages.values())


def bubble(run, spans, length):
    work = sum(s.end - s.start for s in spans if s.kind in PASSES)
    return (run["p"] * length - work) / work


def predict(run, step):
    """The spans of the timeline at the step's own costs, with what comes before and after it; its length"""
    p, v, costs, waits, free = run["p"], run["v"], collections.defaultdict(list), [], {}
    places = [(p - 1 - n % p if run["schedule"] == "zb-v" and n // p % 2 else n % p, n // p) for n in range(p * v)]
    made = {(s.stage, s.chunk, s.kind, s.micro_batch): s.end for s in step.passes}
    for s in step.passes:
        costs[s.kind, s.stage, s.chunk].append(s.end - s.start)
        other = places.index((s.stage, s.chunk)) + (-1 if s.kind == "forward" else 1)
        sent = made.get((*places[other % (p * v)], s.kind, s.micro_batch), math.inf)
        if s.kind != PASSES[3] and 0 <= other < p * v and places[other][0] != s.stage and free.get(s.stage, 0) <= sent:
            waits.append(s.start - sent)
        free[s.stage] = s.end
    lists = [",".join(f"{sum(statistics.mean(costs.get((k, *place), [0])) for k in kinds):.6f}" for place in places)
             for kinds in (PASSES[:1], PASSES[1:3], PASSES[3:])]
    rows, _ = table("schedule", "--schedule", run["schedule"], "--pp", p, "--vpp", v, "--microbatches", run["m"],
                    "--forward", lists[0], "--input", lists[1], "--weight", lists[2], "--transfer",
                    max(0, statistics.mean(waits or [0])))
    first, last = min(step.passes, key=lambda s: s.start), max(step.passes, key=lambda s: s.end)
    before, after = first.start - step.stages[first.stage][0], step.stages[last.stage][1] - last.end
    end = max(s.end for s in rows) + before
    spans = [Span(*s)._replace(start=s.start + before, end=s.end + before) for s in rows]
    return spans + [Span(r, "other", 0, -1, end, end + after) for r in range(p)], end + after


def main():
    run, steps = read(sys.argv[1])
    found = []
    for step in steps[1:]:
        spans, length = predict(run, step)
        found.append((length_of(step), length, bubble(run, step.passes, length_of(step)), bubble(run, spans, length)))
    step, predicted, idle, predicted_idle = map(statistics.median, zip(*found))
    print(f"{run['schedule']}, {run['p']} stages of {run['v']} chunks, {run['m']} micro-batches; {len(found)} steps\n"
          f"step   measured {step:9.3f} predicted {predicted:9.3f}\n"
          f"bubble measured {idle:9.4f} predicted {predicted_idle:9.4f}")


if __name__ == "__main__":
    main()
