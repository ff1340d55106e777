#!/usr/bin/env python3
"""scripts/report.py RUN [RUN ...]: one or several runs as one page to look at: an HTML file that needs nothing else.

    scripts/report.py run                               writes run/report.html
    scripts/report.py run other -o both.html            two runs in the same plots
    scripts/report.py run --trace trace.json            with the schedule as it ran
    scripts/report.py run --watch                       writes it again while the run goes on; the page reloads itself
    scripts/report.py run --tensorboard events          event files for TensorBoard instead of a page

RUN is a folder that train_gpt --out has made, or a log.jsonl. What is read:

    log.jsonl        one JSON object a step; lines that are none (a disk that was full, a run that writes now) are
                     skipped and counted
    options.txt      the options of the run, and what follows from them
    step_*/          checkpoints: config.json and trainer.json of the newest
    trace.json       what each rank did and when (train_gpt --trace), or --trace FILE: one for each run, in their order
    stdout.txt       what the trainer printed, the model's samples too, or --stdout FILE, likewise

A curve of 100,000 steps is thinned to some 800 buckets: those of equal length, and those that grow with the step, so
that the first steps are all there on a logarithmic axis. A bucket keeps mean, least and greatest value, so no outlier
is ever lost; the page draws the mean as a line (smoothed as asked) and the range behind it. Standard library only.
"""
import argparse
import json
import math
import os
import re
import statistics
import sys
import time

import tfevents

HERE = os.path.dirname(os.path.abspath(__file__))
LINEAR_BUCKETS, GROWING_BUCKETS = 500, 300
MOST_SAMPLES, LONGEST_SAMPLE = 40, 20000
MOST_SPANS = 20000  # of a trace, in the page
MOST_MARKS = 200
LARGEST = 1e38  # of a number in a file
MOST_FACTS, LONGEST_FACT = 100, 500  # of a JSON file, in the page
MOST_EVALUATIONS = 16  # curves of what --evaluate has measured
CURVES = ("loss", "grad_norm", "lr", "tokens_per_s", "mfu", "step_ms", "bubble", "peak_mem_bytes", "tp", "pp", "dp",
          "dp_inter_site")
# of the lines that the trainer begins with
HEADINGS = "model data evaluate batch optimizer lr device mesh schedule caat allreduce sites memory auto resume".split()


def fail(text):
    sys.exit(f"report.py: {text}")


# ---- Reading a run -------------------------------------------------------------------------------------------------

def json_lines(path):
    """The objects of a file with one in each line, and how many lines were none. C's nan and inf are numbers here."""
    objects, broken = [], 0
    with open(path, "rb") as f:
        for line in f:
            if not line.strip():
                continue
            try:
                text = line.decode("utf-8")
                if "nan" in text or "inf" in text:
                    text = re.sub(r"([:\[,]\s*)-?nan\b", r"\1NaN", text)
                    text = re.sub(r"([:\[,]\s*-?)inf\b", r"\1Infinity", text)
                one = json.loads(text)
            except (ValueError, RecursionError):
                one = None
            if isinstance(one, dict) and is_number(one.get("step")) and 0 <= one["step"] < 1e15:
                objects.append(one)
            else:
                broken += 1
    return objects, broken


def is_number(x):
    """A finite number that a float32 holds, as event files have them, and whose sums no float64 is too small for."""
    return isinstance(x, (int, float)) and not isinstance(x, bool) and -LARGEST < x < LARGEST


def number_or_none(x):
    return x if is_number(x) else None


def facts_of(values):
    """What a JSON file has at its top, for the page: numbers as they are, and whatever else it is as a short text."""
    plain = lambda x: x if x is None or isinstance(x, bool) or is_number(x) else str(x)[:LONGEST_FACT]
    values = list(values.items())[:MOST_FACTS] if isinstance(values, dict) else []
    return {name[:LONGEST_FACT]: plain(x) for name, x in values}


def in_order(objects):
    """One object a step, steps rising: the lines of a resumed run replace those of the same steps."""
    kept = []
    for one in objects:
        while kept and kept[-1]["step"] >= one["step"]:
            kept.pop()
        kept.append(one)
    return kept


def flatten(line):
    """A line of the log as {name: number or None}."""
    row = {name: number_or_none(line.get(name)) for name in CURVES + ("val_loss", "tokens")}
    groups = line.get("comm_bytes")
    for name in ("tp", "pp", "dp", "dp_inter_site") if isinstance(groups, dict) else ():
        row[name] = number_or_none(groups.get(name))
    row["step"] = int(line["step"])
    row["mark"] = mark_of(line, row)
    row["evaluations"] = evaluations_of(line)
    return row


def evaluations_of(line):
    """What --evaluate has measured after a step: {(kind, name of the curve): number}."""
    found, scores = {}, line.get("evaluations")
    scores = scores if isinstance(scores, list) else []
    scores = [one for one in scores if isinstance(one, dict) and isinstance(one.get("file"), str)]
    short = [os.path.basename(one["file"]) for one in scores]
    for one, name in zip(scores, short):
        name = name if short.count(name) == 1 else one["file"]
        for key in ("acc", "acc_norm"):
            if is_number(one.get(key)):
                found["accuracy", f"{name} {key}"] = one[key]
    return found


def mark_of(line, row):
    """What is unusual in a step: (kind, text), or None."""
    if line.get("skipped") is True:
        return "skipped", "this step was skipped: its loss or gradient was not finite"
    if isinstance(line.get("loss"), float) and row["loss"] is None:
        return "diverged", "the loss was not a finite number"
    return None


def read_options(path):
    """options.txt: what was given, as {name: value}; what followed, from lines "# --name value"; and the "# about:
    text" lines before all of them. Later lines of that kind are headings."""
    given, implied, about = {}, {}, {}
    with open(path, encoding="utf-8", errors="replace") as f:
        for line in f:
            option = re.match(r"(#\s*)?--([\w-]+)[\s=]*(.*)", line.strip())
            fact = re.match(r"#\s*([a-z]+):\s+(.+)", line.strip())
            if option:
                (implied if option.group(1) else given)[option.group(2)] = option.group(3).strip() or "yes"
            elif fact and not given and not implied:
                about[fact.group(1)] = fact.group(2).strip()
    return given, implied, about


def read_stdout(path):
    """What the trainer printed: its first lines as {heading: text}, its table of bytes, what the model wrote, and
    --steps."""
    about, traffic, samples, steps, at = {}, [], [], None, 0
    with open(path, encoding="utf-8", errors="replace") as f:
        lines = re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", f.read()).replace("\r", "\n").split("\n")
    writes, tells = None, False
    for line in lines:
        step = re.match(r"step +(\d{1,15})/(\d{1,15}) \|", line)
        word = line.split(" ", 1)[0]
        if step or re.match(r"(done|saved|skipped|evaluated|traffic|trace) ", line):
            writes = None
        if step:
            at, steps = int(step.group(1)), int(step.group(2))
        elif line == "sample:":
            writes = {"step": at, "text": ""}
            samples.append(writes)
        elif writes is not None:
            writes["text"] += line + "\n"
        elif line.startswith("traffic of a step"):
            tells = True
            traffic.append(line)
        elif tells and line.startswith("  "):
            traffic.append(line)
        elif word in HEADINGS and line.startswith(f"{word:10}"):
            about.setdefault(word, line[len(word):].strip())
            tells = False
    for one in samples:
        one["text"] = one["text"].strip("\n")
    return about, "\n".join(traffic), samples, steps


def read_checkpoint(folder):
    """Of the newest checkpoint: its name, config.json and trainer.json, as far as they can be read."""
    names = sorted(n for n in os.listdir(folder) if re.fullmatch(r"step_\d{8,}", n))
    found = {"name": names[-1], "count": len(names)} if names else {}
    for part in ("config", "trainer") if names else ():
        try:
            with open(os.path.join(folder, names[-1], part + ".json"), encoding="utf-8") as f:
                found[part] = facts_of(json.load(f))
        except (OSError, ValueError, RecursionError):
            found[part] = {}
    return found


def first_file(given, *beside):
    """--trace or --stdout where it is given, else a file beside the log if there is one."""
    if given and not os.path.isfile(given):
        fail(f"{given}: no such file")
    return given or next((path for path in beside if os.path.isfile(path)), None)


def read_run(path, trace=None, stdout=None):
    """Everything that is known of a run, with its log as a list of rows."""
    log = os.path.join(path, "log.jsonl") if os.path.isdir(path) else path
    if not os.path.isfile(log):
        fail(f"{path}: there is no log.jsonl: give the folder of a run (train_gpt --out)")
    folder = os.path.dirname(os.path.abspath(log))
    beside = lambda name: os.path.join(folder, name)
    objects, broken = json_lines(log)
    run = {"name": os.path.basename(folder), "path": folder, "broken": broken,
           "rows": [flatten(o) for o in in_order(objects)],
           "written": os.path.getmtime(log), "given": {}, "implied": {}, "about": {}, "traffic": "", "samples": [],
           "steps": None, "trace": None, "checkpoint": read_checkpoint(folder)}
    if os.path.isfile(beside("options.txt")):
        run["given"], run["implied"], run["about"] = read_options(beside("options.txt"))
    printed = first_file(stdout, beside("stdout.txt"))
    if printed:
        about, run["traffic"], run["samples"], run["steps"] = read_stdout(printed)
        run["about"].update(about)
    steps = run["given"].get("steps", run["implied"].get("steps"))
    if steps and re.fullmatch(r"\d{1,15}", steps):
        run["steps"] = int(steps)
    traced = first_file(trace, beside("trace.json"))
    if traced:
        run["trace"] = read_trace(traced)
    return run


def is_done(run):
    return bool(run["rows"]) and run["steps"] is not None and run["rows"][-1]["step"] >= run["steps"]


# ---- Curves --------------------------------------------------------------------------------------------------------

def bucket_edges(n):
    """Where buckets of n rows begin, and n: each row alone where there are few."""
    if n <= LINEAR_BUCKETS + GROWING_BUCKETS:
        return list(range(n + 1))
    linear = {i * n // LINEAR_BUCKETS for i in range(LINEAR_BUCKETS + 1)}
    growing = {int(n ** (i / GROWING_BUCKETS)) for i in range(GROWING_BUCKETS)}
    return sorted(linear | growing)


def significant(x):
    """Six digits are more than a plot shows."""
    return None if x is None else float(f"{x:.6g}") if isinstance(x, float) else x


def thin(rows, names):
    """rows as buckets: step, tokens and seconds at the end of each, number of rows, and of each name mean, least,
    greatest."""
    out = {"step": [], "tokens": [], "seconds": [], "n": []}
    edges = bucket_edges(len(rows))
    for begin, end in zip(edges, edges[1:]):
        last = rows[end - 1]
        for name in ("step", "tokens", "seconds"):
            out[name].append(significant(last["so_far"][name]))
        out["n"].append(end - begin)
    for name in names:
        curve = {"mean": [], "low": [], "high": []}
        for begin, end in zip(edges, edges[1:]):
            values = [row[name] for row in rows[begin:end] if row[name] is not None]
            curve["mean"].append(significant(math.fsum(values) / len(values)) if values else None)
            curve["low"].append(significant(min(values)) if values else None)
            curve["high"].append(significant(max(values)) if values else None)
        if curve["low"] == curve["high"]:
            del curve["low"], curve["high"]
        out[name] = curve
    return out


def count_up(rows):
    """Gives each row what is done when it ends: steps, tokens, seconds of training."""
    tokens = seconds = 0
    for row in rows:
        tokens += row["tokens"] or 0
        seconds += (row["step_ms"] or 0) / 1e3
        row["so_far"] = {"step": row["step"], "tokens": tokens, "seconds": seconds}


def evaluation_curves(rows):
    """The steps that --evaluate has measured, with a curve "0", "1", ... for each thing; "names" says what they are."""
    names = sorted({name for row in rows for name in row["evaluations"]})[:MOST_EVALUATIONS]
    keys = [str(i) for i in range(len(names))]
    measured = [dict({key: row["evaluations"].get(name) for key, name in zip(keys, names)}, so_far=row["so_far"])
                for row in rows if row["evaluations"]]
    return {**thin(measured, keys), "names": [{"kind": kind, "label": label} for kind, label in names]}


def median(values):
    values = [v for v in values if v is not None]
    return statistics.median(values) if values else None


def end_figures(rows):
    if not rows:
        return {}
    last = rows[-1]
    validated = [row for row in rows if row["val_loss"] is not None]
    best = min(validated, key=lambda row: row["val_loss"]) if validated else None
    of = lambda name: [row[name] for row in rows]
    moved = [sum(row[g] or 0 for g in ("tp", "pp", "dp")) for row in rows]
    peaks = [v for v in of("peak_mem_bytes") if v is not None]
    figures = {
        "step": last["step"], "loss": next((row["loss"] for row in reversed(rows) if row["loss"] is not None), None),
        "val_loss": validated[-1]["val_loss"] if best else None, "best_val_loss": best["val_loss"] if best else None,
        "best_step": best["step"] if best else None, "tokens": last["so_far"]["tokens"],
        "seconds": last["so_far"]["seconds"],
        "step_ms": median(of("step_ms")), "tokens_per_s": median(of("tokens_per_s")), "mfu": median(of("mfu")),
        "bubble": median(of("bubble")),
        "peak_mem_bytes": max(peaks) if peaks else None, "comm_bytes": median(moved),
    }
    return {name: significant(value) for name, value in figures.items()}


def marks(rows):
    """The steps that are unusual, MOST_MARKS of each kind, as curves have their steps; and how many of each kind there
    are."""
    out, counts = [], {"diverged": 0, "skipped": 0}
    for row in rows:
        if row["mark"]:
            kind, text = row["mark"]
            counts[kind] += 1
            if counts[kind] <= MOST_MARKS:
                out.append(dict(row["so_far"], kind=kind, text=text))
    return out, counts


def thin_samples(samples):
    """At most MOST_SAMPLES, evenly spaced, the first and the last among them."""
    if len(samples) > MOST_SAMPLES:
        samples = [samples[i * (len(samples) - 1) // (MOST_SAMPLES - 1)] for i in range(MOST_SAMPLES)]
    return [{"step": int(s["step"]), "text": s["text"][:LONGEST_SAMPLE]} for s in samples]


# ---- The schedule as it ran ----------------------------------------------------------------------------------------

def is_event(e):
    """An event of one of train_gpt's processes, on one of its tracks."""
    return (isinstance(e, dict) and isinstance(e.get("pid"), int) and isinstance(e.get("tid", 0), int)
            and isinstance(e.get("name"), str))


def read_trace(path):
    """A trace's spans by rank, as (track, name, begin, end) in microseconds; what it is of; and its name."""
    try:
        with open(path, encoding="utf-8", errors="replace") as f:
            trace = json.load(f)
    except (ValueError, RecursionError) as error:
        fail(f"{path}: not a trace: {error}")
    events = trace.get("traceEvents") if isinstance(trace, dict) else None
    if not isinstance(events, list):
        fail(f"{path}: not a trace of train_gpt: it has no traceEvents")
    names, ranks = {}, {}
    for e in events:
        if not is_event(e):
            continue
        args = e.get("args")
        if e.get("ph") == "M" and isinstance(args, dict) and isinstance(args.get("name"), str):
            names[e.get("name"), e.get("pid"), e.get("tid") if e.get("name") == "thread_name" else None] = args["name"]
    for e in events:
        if not is_event(e) or e.get("ph") != "X":
            continue
        if not is_number(e.get("ts")) or not is_number(e.get("dur")):
            continue
        track = re.sub(r" \d+$", "", names.get(("thread_name", e["pid"], e.get("tid")), "compute"))
        ranks.setdefault(e["pid"], []).append((track, e["name"], e["ts"], e["ts"] + e["dur"]))
    for spans in ranks.values():
        spans.sort(key=lambda s: s[2])
    return {"file": os.path.basename(path), "about": facts_of(trace.get("otherData")), "ranks": ranks,
            "labels": {rank: names.get(("process_name", rank, None), f"rank {rank}") for rank in ranks}}


def steps_of(trace):
    """(number, begin, end) of the steps, by the clock of the first rank; a trace without them is one."""
    spans = trace["ranks"][min(trace["ranks"])]
    steps = [(int(name.split()[-1]), begin, end) for track, name, begin, end in spans
             if track == "step" and re.fullmatch(r"step \d{1,15}", name)]
    every = [s for spans in trace["ranks"].values() for s in spans]
    return steps or [(0, min(s[2] for s in every), max(s[3] for s in every))]


def kind_of(name):
    """The kind of a compute span, from its name without chunk and micro-batch."""
    name = re.sub(r"^chunk \d+ ", "", re.sub(r" \d+$", "", name))
    if name in ("forward", "backward"):
        return name
    return {"backward input half": "backward", "backward weight half": "weight", "update": "update",
            "update tied": "update"}.get(name, "other")


def overlap(a, b):
    """The length that two lists of spans (begin, end), each sorted and without overlaps of its own, have in common."""
    i = j = 0
    common = 0
    while i < len(a) and j < len(b):
        common += max(0, min(a[i][1], b[j][1]) - max(a[i][0], b[j][0]))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return common


def union(spans):
    """Spans as sorted ones that do not overlap."""
    out = []
    for begin, end in sorted(spans):
        if out and begin <= out[-1][1]:
            out[-1] = (out[-1][0], max(end, out[-1][1]))
        else:
            out.append((begin, end))
    return out


def shares(spans, begin, end):
    """What part of the time from begin to end a rank spent on each kind, on waiting in the middle of one, and on
    nothing."""
    inside = lambda s: (max(s[2], begin), min(s[3], end))
    waits = union([inside(s) for s in spans if s[0] == "wait" and s[3] > begin and s[2] < end])
    out = {}
    for kind in ("forward", "backward", "weight", "update", "other"):
        mine = union([inside(s) for s in spans if s[0] == "compute" and kind_of(s[1]) == kind and s[3] > begin
                      and s[2] < end])
        waited = overlap(mine, waits)
        out[kind] = sum(b - a for a, b in mine) - waited
        out["wait"] = out.get("wait", 0) + waited
    whole = max(end - begin, 1e-9)
    out["idle"] = max(0, whole - sum(out.values()))
    return {kind: round(t / whole, 4) for kind, t in out.items()}


def window(steps, spans_in):
    """Which steps the page shows: as many as MOST_SPANS allows, around one of median length. Returns first, last, that
    one."""
    by_length = sorted(range(len(steps)), key=lambda i: steps[i][2] - steps[i][1])
    middle = by_length[len(by_length) // 2]
    first = last = middle
    total = spans_in(middle)
    while first > 0 or last < len(steps) - 1:
        following = last + 1 if last < len(steps) - 1 and (last - middle <= middle - first or first == 0) else first - 1
        total += spans_in(following)
        if total > MOST_SPANS:
            break
        first, last = min(first, following), max(last, following)
    return first, last, middle


def thin_trace(trace):
    """What the page shows of a trace: ranks with their spans, in microseconds from the first that is shown."""
    if not trace or not trace["ranks"]:
        return None
    steps = steps_of(trace)
    counts = [0] * len(steps)
    for spans in trace["ranks"].values():
        i = 0
        for span in spans:
            while i < len(steps) - 1 and span[2] >= steps[i + 1][1]:
                i += 1
            counts[i] += span[0] != "step"
    first, last, middle = window(steps, lambda i: counts[i])
    begin = steps[first][1]
    end = max(steps[last][2], steps[last + 1][1] if last + 1 < len(steps) else 0)
    warm = steps[1:] or steps  # the first step takes memory that later ones have
    ranks = []
    for rank in sorted(trace["ranks"]):
        spans = [s for s in trace["ranks"][rank] if s[0] != "step" and s[2] < end and s[3] > begin]
        ranks.append({"label": trace["labels"][rank], "shares": shares(trace["ranks"][rank], warm[0][1], warm[-1][2]),
                      "spans": [[t, n, round(a - begin, 1), round(b - a, 1)] for t, n, a, b in spans[:MOST_SPANS]]})
    names = sorted({s[1] for r in ranks for s in r["spans"]})
    tracks = sorted({s[0] for r in ranks for s in r["spans"]})
    number = {name: i for i, name in enumerate(names)}
    place = {track: i for i, track in enumerate(tracks)}
    for r in ranks:
        r["spans"] = [[place[t], number[n], a, b] for t, n, a, b in r["spans"]]
    return {"file": trace["file"], "about": trace["about"], "tracks": tracks, "names": names,
            "kinds": [kind_of(n) for n in names],
            "ranks": ranks, "length": round(end - begin, 1), "recorded": len(steps),
            "steps": [[n, round(a - begin, 1), round(b - begin, 1)] for n, a, b in steps[first:last + 1]],
            "view": [round(steps[middle][1] - begin, 1), round(steps[middle][2] - begin, 1)]}


# ---- The page ------------------------------------------------------------------------------------------------------

def unlike_names(runs):
    """Folders of one name get as much of their path as tells them apart; the same folder twice gets a number."""
    for depth in range(2, 12):
        names = [run["name"] for run in runs]
        if len(set(names)) == len(names):
            return
        for run in runs:
            if names.count(run["name"]) > 1:
                run["name"] = "/".join(run["path"].split(os.sep)[-depth:])
    for i, run in enumerate(runs):
        run["name"] += f" ({i + 1})"


def page_run(run):
    rows = run["rows"]
    count_up(rows)
    present = [name for name in CURVES if any(row[name] is not None for row in rows)]
    about = dict(run["about"])
    notes = []
    if run["broken"]:
        notes.append(f"{run['broken']} line{'s' * (run['broken'] > 1)} of log.jsonl could not be read and "
                     f"{'are' if run['broken'] > 1 else 'is'} left out")
    figures = end_figures(rows)
    marked, counts = marks(rows)
    for kind, what in (("diverged", "the loss was not a finite number in"),
                       ("skipped", "loss or gradient were not finite, and no update was made, in")):
        if counts[kind]:
            notes.append(f"{what} {counts[kind]} step{'s' * (counts[kind] > 1)}")
    drawn = len(bucket_edges(len(rows))) - 1
    thinned = ""
    if drawn < len(rows):
        thinned = f"{len(rows)} steps are drawn as {drawn} means, with all values in the range behind them"
    return {"name": run["name"], "path": run["path"], "given": run["given"], "implied": run["implied"], "about": about,
            "traffic": run["traffic"], "checkpoint": run["checkpoint"], "steps": run["steps"], "done": is_done(run),
            "written": int(run["written"]), "notes": notes, "thinned": thinned, "figures": figures,
            "curves": thin(rows, present),
            "validation": thin([row for row in rows if row["val_loss"] is not None], ["val_loss"]),
            "evaluations": evaluation_curves(rows), "marks": marked,
            "samples": thin_samples(run["samples"]), "trace": thin_trace(run["trace"])}


def page(runs, reload_seconds):
    """The page as text: the template with its title and its data."""
    unlike_names(runs)
    data = {"runs": [page_run(run) for run in runs], "made": int(time.time()), "reload": reload_seconds}
    # no </script> in a sample ends ours
    text = json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    with open(os.path.join(HERE, "report.html"), encoding="utf-8") as f:
        template = f.read()
    title = ", ".join(run["name"] for run in runs)
    for char, name in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        title = title.replace(char, name)
    # the data first: they have no <, and a run's name may be "DATA"
    return template.replace('"DATA"', text, 1).replace("<!--TITLE-->", title, 1)


def write_whole(path, data):
    """A file that is there whole, or as it was before."""
    temporary = f"{path}.tmp{os.getpid()}"
    try:
        with open(temporary, "wb") as f:
            f.write(data)
        os.replace(temporary, path)
    except OSError as error:
        if os.path.exists(temporary):
            os.unlink(temporary)
        fail(f"{path}: cannot write: {error.strerror}")


# ---- TensorBoard ---------------------------------------------------------------------------------------------------

TAGS = (("loss", "loss/training", 1), ("val_loss", "loss/validation", 1), ("grad_norm", "step/gradient norm", 1),
        ("lr", "step/learning rate", 1), ("step_ms", "speed/ms a step", 1),
        ("tokens_per_s", "speed/tokens per second", 1),
        ("mfu", "speed/mfu", 1), ("bubble", "speed/bubble", 1), ("peak_mem_bytes", "memory/peak MB", 1e-6),
        ("tp", "traffic/tensor MB", 1e-6),
        ("pp", "traffic/pipeline MB", 1e-6), ("dp", "traffic/data MB", 1e-6),
        ("dp_inter_site", "traffic/between sites MB", 1e-6))


def start_time(run):
    """When the run began: as options.txt says, or by the log's last change and the time that the steps took."""
    try:
        return time.mktime(time.strptime(run["about"].get("started", "")[:19], "%Y-%m-%d %H:%M:%S")) - time.timezone
    except (ValueError, OverflowError):
        return run["written"] - (run["rows"][-1]["so_far"]["seconds"] if run["rows"] else 0)


def event_file(run):
    """The bytes of a run's event file."""
    count_up(run["rows"])
    started = start_time(run)
    records, samples = [tfevents.begin(started)], list(run["samples"])
    for row in run["rows"]:
        numbers = [(tag, row[name] * unit) for name, tag, unit in TAGS if row[name] is not None]
        numbers += [(f"{kind}/{label}", value) for (kind, label), value in sorted(row["evaluations"].items())]
        at = started + row["so_far"]["seconds"]
        records.append(tfevents.scalars(at, row["step"], numbers))
        while samples and samples[0]["step"] <= row["step"]:
            sample = samples.pop(0)
            records.append(tfevents.text(at, int(sample["step"]), "the model writes", indented(sample["text"])))
    return b"".join(records)


def indented(text):
    """TensorBoard shows texts as Markdown: four blanks keep lines as they are."""
    return "\n".join("    " + line for line in text.split("\n"))


def write_events(runs, folder):
    """A folder for each run. What TensorBoard has read already stays where it is: a file that has grown is grown."""
    unlike_names(runs)
    for run in runs:
        place = os.path.join(folder, run["name"].replace(os.sep, "_"))
        path = os.path.join(place, "events.out.tfevents.0000000000.threefold")
        data = event_file(run)
        try:
            os.makedirs(place, exist_ok=True)
            old = b""
            if os.path.exists(path):
                with open(path, "rb") as f:
                    old = f.read()
        except OSError as error:
            fail(f"{path}: cannot write: {error.strerror}")
        if old and data.startswith(old):
            with open(path, "ab") as f:
                f.write(data[len(old):])
        else:
            write_whole(path, data)
        print(f"{path}: {len(run['rows'])} steps")


# --------------------------------------------------------------------------------------------------------------------

def read_runs(o):
    pick = lambda files, i: files[i] if i < len(files) else None
    try:
        return [read_run(path, pick(o.trace, i), pick(o.stdout, i)) for i, path in enumerate(o.run)]
    except OSError as error:
        fail(f"{error.filename}: cannot read: {error.strerror}")


def write(o, runs, reload_seconds):
    if o.tensorboard:
        write_events(runs, o.tensorboard)
        return
    write_whole(o.output, page(runs, reload_seconds).encode("utf-8", "replace"))


def arguments():
    parser = argparse.ArgumentParser(prog="report.py", description="runs as one page to look at",
                                     epilog=__doc__.split("\n", 2)[2],
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="+", metavar="RUN", help="folder of train_gpt --out, or a log.jsonl")
    parser.add_argument("-o", "--output", metavar="FILE",
                        help="where the page goes [report.html in the first run's folder]")
    parser.add_argument("--trace", action="append", default=[], metavar="FILE",
                        help="of train_gpt --trace; once for each run")
    parser.add_argument("--stdout", action="append", default=[], metavar="FILE",
                        help="what train_gpt printed; once for each run")
    parser.add_argument("--watch", nargs="?", type=float, const=5, metavar="SECONDS",
                        help="write it again and again, until the runs are done [5]")
    parser.add_argument("--tensorboard", metavar="DIR", help="event files into this folder instead of a page")
    o = parser.parse_args()
    if len(o.trace) > len(o.run) or len(o.stdout) > len(o.run):
        parser.error("more --trace or --stdout than runs")
    if o.tensorboard and o.output:
        parser.error("--tensorboard writes no page: drop --output")
    if o.watch is not None and not 0.1 <= o.watch <= 86400:
        parser.error("--watch has a time from 0.1 to 86400 seconds")
    if not o.output:
        first = o.run[0]
        o.output = os.path.join(first if os.path.isdir(first) else os.path.dirname(first), "report.html")
    return o


def main():
    o = arguments()
    runs = read_runs(o)
    if o.watch is None:
        write(o, runs, 0)
        if not o.tensorboard:
            print(f"{o.output}: {', '.join(run['name'] for run in runs)}")
        return
    print(f"watching {', '.join(o.run)}: {o.tensorboard or o.output} is written every {o.watch:g} s; Ctrl-C ends it",
          flush=True)
    try:
        while not all(is_done(run) for run in runs):
            write(o, runs, o.watch)
            time.sleep(o.watch)
            runs = read_runs(o)
    except KeyboardInterrupt:
        print()
    write(o, runs, 0)  # a page that no longer reloads itself


if __name__ == "__main__":
    main()
