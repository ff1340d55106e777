#!/usr/bin/env python3
"""
scripts/report.py and scripts/tfevents.py against what they promise: lines that are none are counted and no more; a
thinned curve has every extreme, and the mean of the whole; a trace's shares are those of a clock that is read at many
moments; the page needs nothing from elsewhere, and no text in it becomes a part of it; event files are read back by a
reader of our own, with a CRC computed bit by bit. What the page computes itself is run by node where there is one. Then
a real run of ./train_gpt.

    dev/test/system/test_report.py [lines|evaluations|options|damage|thinning|traces|page|script|watch|tensorboard|run
    ...]
"""
import json
import math
import os
import random
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time

from checks import check, finish

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..")
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(ROOT, "scripts"))
import report  # noqa: E402
import tfevents  # noqa: E402

REPORT = os.path.join(ROOT, "scripts", "report.py")
TRAIN = os.path.abspath(os.environ.get("TRAIN", os.path.join(ROOT, "train_gpt")))


def log_line(step, **other):
    line = {"step": step, "loss": 5 / math.sqrt(step), "val_loss": None, "grad_norm": 1.5, "lr": 0.001, "tokens": 4096,
            "step_ms": 250.0,
            "tokens_per_s": 16384.0, "mfu": 0.4, "comm_bytes": {"tp": 100, "pp": 20, "dp": 3}, "bubble": 0.1,
            "peak_mem_bytes": 1000 + step}
    line.update(other)
    return line


def write_log(folder, lines):
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "log.jsonl"), "w", encoding="utf-8") as f:
        for line in lines:
            f.write((line if isinstance(line, str) else json.dumps(line)) + "\n")


def data_of(page):
    found = re.findall(r'<script id="data" type="application/json">(.*?)</script>', page, re.S)
    assert len(found) == 1
    return json.loads(found[0])


def run(*arguments, **other):
    return subprocess.run([sys.executable, REPORT, *arguments], capture_output=True, text=True, timeout=600, **other)


# ---- reading

def test_log_lines(work):
    path = os.path.join(work, "lines")
    good = [b'{"step":1,"loss":2.5}', b'{"step":2,"loss":nan}', b'{"step":3,"loss":-inf,"x":[inf,-nan]}',
            b'  {"step":4}  ',
            b'{"step":5,"text":"a nan, inf: ,inf"}']
    bad = [b"", b"   ", b'{"step":6,"loss":2.', b"[1]", b"7", b"null", b'{"loss":2}', b'{"step":true}', b'{"step":"8"}',
           b'{"step":-1}',
           b'{"step":NaN}', b'{"step":1e300}', b"\xff\xfe{", b'{"step":9}{"step":10}', b"\0\0\0\0", b"[" * 100000]
    with open(path, "wb") as f:
        f.write(b"\n".join(x for pair in zip(bad, good + bad) for x in pair) + b'\n{"step":11,"lo')
    mixed = [x for pair in zip(bad, good + bad) for x in pair]
    objects, broken = report.json_lines(path)
    check([o["step"] for o in objects] == [1, 2, 3, 4, 5], "good lines among broken ones are read, in their order")
    check(broken == sum(1 for x in mixed if x.strip() and x not in good) + 1,
          "broken lines are counted, empty ones are not")
    check(math.isnan(objects[1]["loss"]) and objects[2]["loss"] == -math.inf and objects[2]["x"][0] == math.inf,
          "C's nan and inf are numbers")
    check(objects[4]["text"] == "a nan, Infinity: ,Infinity" or objects[4]["text"] == "a nan, inf: ,inf",
          "a text with these words is read")
    row = report.flatten(objects[1])
    check(row["loss"] is None and row["mark"][0] == "diverged" and report.flatten(objects[0])["mark"] is None
          and report.flatten(objects[3])["mark"] is None, "a loss that is not finite is no missing one")
    texts = [report.flatten(log_line(1, **x))["mark"]
             for x in ({"skipped": True}, {"skipped": False})]
    check([m and m[0] for m in texts] == ["skipped", None], "steps that were skipped")
    row = report.flatten({"step": 3, "loss": "2", "comm_bytes": [1], "mfu": True, "lr": {}})
    check(all(row[n] is None for n in report.CURVES), "values of a wrong type are missing, not fatal")
    steps = [1, 2, 3, 4, 3, 4, 5, 2, 3]
    kept = report.in_order([{"step": s, "at": i} for i, s in enumerate(steps)])
    check([(o["step"], o["at"]) for o in kept] == [(1, 0), (2, 7), (3, 8)],
          "what a resumed run wrote again replaces what it wrote before")


def test_evaluations(work):
    made = [{"file": "data/q.bin", "examples": 9, "acc": 0.5, "acc_norm": 0.25},
            {"file": "<!--", "examples": 7, "acc": 0.125}]
    row = report.flatten(log_line(1, evaluations=made + [7, {"acc": 1}, {"file": "x", "acc": "y"},
                                                         {"file": "x", "acc_norm": None}, {"file": "a/z", "acc": 1},
                                                         {"file": "b/z", "acc": 0}]))
    check(row["evaluations"] == {("accuracy", "q.bin acc"): 0.5, ("accuracy", "q.bin acc_norm"): 0.25,
                                 ("accuracy", "<!-- acc"): 0.125, ("accuracy", "a/z acc"): 1,
                                 ("accuracy", "b/z acc"): 0},
          "evaluations of a step, files by as much of their names as tells them apart")
    check(all(report.flatten(log_line(1, evaluations=x))["evaluations"] == {} for x in (None, 3, {}, "x", [[]])),
          "of a wrong type they are none")
    later = [dict(made[0], acc=0.75), dict(made[1], file="step")]
    write_log(os.path.join(work, "measured"),
              [log_line(i, **({"evaluations": made if i == 2 else later} if i in (2, 5) else {})) for i in range(1, 6)])
    check(run(os.path.join(work, "measured")).returncode == 0, "a run with evaluations is a page")
    with open(os.path.join(work, "measured", "report.html"), encoding="utf-8") as f:
        page = f.read()
    curves = data_of(page)["runs"][0]["evaluations"]
    check([c["kind"] for c in curves["names"]] == ["accuracy"] * 4 and
          [c["label"] for c in curves["names"]] == ["<!-- acc", "q.bin acc", "q.bin acc_norm", "step acc"],
          "its curves")
    check(curves["step"] == [2, 5] and curves["tokens"] == [2 * 4096, 5 * 4096], "have their own steps")
    check([curves[str(i)]["mean"] for i in range(4)] == [[0.125, None], [0.5, 0.75], [0.25, 0.25], [None, 0.125]],
          "and values")
    check(page.count("<!--") == 1, "the name of a file does not become a part of the page")
    events = os.path.join(work, "measured_events")
    check(run(os.path.join(work, "measured"), "--tensorboard", events).returncode == 0, "event files of them")
    with open(os.path.join(events, "measured", "events.out.tfevents.0000000000.threefold"), "rb") as f:
        data = f.read()
    check(data.count(b"accuracy/q.bin acc_norm") == 2 and data.count(b"accuracy/<!-- acc") == 1, "have them too")


def test_options(work):
    path = os.path.join(work, "options.txt")
    with open(path, "w", encoding="utf-8") as f:
        f.write("# started: 2026-01-02 03:04:05 UTC\n\n# model\n# --lr 0.003\n--data a b.txt\n--resume\n\n"
                "# mesh: ranks = tp x pp x dp\n  --steps=12\n# --outer-lr 0.5\n\n")
    given, implied, about = report.read_options(path)
    check(given == {"data": "a b.txt", "resume": "yes", "steps": "12"}, "options.txt: what was given")
    check(implied == {"lr": "0.003", "outer-lr": "0.5"} and about == {"started": "2026-01-02 03:04:05 UTC"},
          "options.txt: what follows")
    check("mesh" not in about, "options.txt: a heading is no fact of the run")
    check(report.start_time({"about": about}) == 1767323045, "the start is read as UTC")
    printed = ("model     tiny: gpt2\ndata      x.txt\nsaid      no\n"
               "\x1b[?7lstep     1/9 | loss 3\x1b[?7h\r\x1b[K\x1b[?7lstep     2/9 | loss 2.5 | val 3\x1b[?7h\n"
               "sample:\n\nfirst\n\nmesh  of it\nsaved     x\nstep     3/9 | loss 2\ndone      9 steps\n"
               "traffic of a step, MB\n  tensor 1\n  data   2\ntrace     x\nsample:\n\nlast one\n\n")
    with open(path, "w", encoding="utf-8") as f:
        f.write(printed)
    about, traffic, samples, steps = report.read_stdout(path)
    check(about == {"model": "tiny: gpt2", "data": "x.txt"} and steps == 9, "stdout: its headings, and the steps")
    check(traffic == "traffic of a step, MB\n  tensor 1\n  data   2", "stdout: the table of bytes")
    check(samples == [{"step": 2, "text": "first\n\nmesh  of it"}, {"step": 3, "text": "last one"}],
          "stdout: what the model wrote")


# ---- damage

TOKENS = [b"NaN", b"-Infinity", b"nan", b"1e308", b"-1e308", b"1e39", b"9" * 400, b"9" * 5000, b"-1", b"0.5", b"null",
          b"true", b"{}", b"[]",
          b'"x"', b'"\\ud800"', b"[" * 3000 + b"]" * 3000, b"1e999", b"[NaN]", b'{"a":NaN}', b"\xff", b'"\\u0000"',
          b"999999999999999"]


def damaged(data, draw):
    """Bytes of a file, cut, with wrong bytes, or with other values."""
    for _ in range(draw.choice([1, 1, 1, 2, 5])):
        at = draw.randrange(len(data))
        values = list(re.finditer(rb'(?<=[: ,\[])("[^"]*"|-?[0-9.e+]+|null)(?=[,}\]\s|/])', data))
        how = draw.randrange(6)
        if how == 0:
            data = data[:at + 1]
        elif how == 1:
            data = data[:at] + bytes([draw.randrange(256)]) + data[at + 1:]
        elif how == 2 or not values:
            data = data[:at] + draw.choice(TOKENS) + data[at:]
        else:
            value = draw.choice(values)
            data = data[:value.start()] + draw.choice(TOKENS) + data[value.end():]
    return data


def outcome(folder):
    """What goes wrong with the page and the event file of a run; None: nothing, or a message of our own."""
    for make in (lambda run: report.page([run], 0).encode("utf-8", "replace"), report.event_file):
        try:
            make(report.read_run(folder))
        except SystemExit:
            pass
        except Exception as error:  # whatever it is
            return repr(error)[:200]
    return None


def test_damage(work):
    folder = os.path.join(work, "damaged")
    newest = "step_00000012/"
    whole = {
        "log.jsonl": "".join(json.dumps(log_line(i, evaluations=[{"file": "a", "acc": 0.5}])) + "\n"
                             for i in range(1, 13)),
        "options.txt": "# started: 2026-01-02 03:04:05 UTC\n# model: x\n\n# model\n# --lr 0.003\n--data a b.txt\n"
                       "--steps 12\n",
        "stdout.txt": "model     tiny\nstep     1/9 | loss 3\nsample:\n\nfirst\ntraffic of a step, MB\n  tensor 1\n",
        newest + "trainer.json": '{"step": 12, "sequences": 192, "rounds": "", "val_loss": 5.4, "files": {"a": '
                                 '{"bytes": 3, "checksum": "ff"}}}',
        newest + "config.json": '{"n_head": 2, "eps": 1e-05, "list": [1, 2], "name": "gpt2"}',
        "trace.json": json.dumps({"traceEvents": make_trace(2, 3, random.Random(1)),
                                  "otherData": {"schedule": "1f1b", "p": 3}}),
    }
    whole = {name: text.encode() for name, text in whole.items()}
    os.makedirs(os.path.join(folder, newest))

    def write(name, data):
        for other, text in whole.items():
            with open(os.path.join(folder, other), "wb") as f:
                f.write(data if other == name else text)
        return outcome(folder)

    known = [("log.jsonl", b"%s" % b"9" * 400), ("log.jsonl", b'{"step":1,"loss":%s}' % (b"9" * 400)),
             ("log.jsonl", b'{"step":1,"loss":1e39}'),
             ("log.jsonl", b'{"step":1,"tokens":1e308}\n{"step":2,"tokens":1e308}'),
             ("trace.json", b'{"traceEvents":[{"ph":"M","name":"process_name","pid":[],"args":{"name":"x"}}]}'),
             ("trace.json", b'{"traceEvents":[{"ph":"X","name":"a","pid":0,"ts":0,"dur":1}],"otherData":{"p":NaN}}'),
             ("stdout.txt", b"step %s/2 | loss 1" % (b"1" * 5000)),
             ("options.txt", b"# started: 0000-01-01 00:00:00\n"),
             (newest + "trainer.json", b'{"val_loss": NaN}'), (newest + "config.json", b"[" * 100000),
             (newest + "config.json", b'{"a": 1e999}')]
    for name, data in known:
        wrong = write(name, data)
        check(wrong is None, f"{name}: {data[:50]} is a page all the same: {wrong}")
    draw, found = random.Random(int(os.environ.get("SEED", "1"))), []
    for i in range(500):
        name = draw.choice(sorted(whole))
        data = damaged(whole[name], draw)
        wrong = write(name, data)
        if wrong:
            found.append(f"{name}: {data[:200]}: {wrong}")
    check(not found, f"500 damaged files, a page or a message each: {len(found)} have failed {found[:1]}")
    if os.geteuid() != 0:
        os.chmod(os.path.join(folder, "log.jsonl"), 0)
        got = run(folder)
        check(got.returncode == 1 and "Traceback" not in got.stderr, "a log that must not be read is a message")


# ---- curves

def test_thinning():
    draw = random.Random(7)
    for n in (0, 1, 2, 799, 800, 801, 1000, 12345, 40000):
        edges = report.bucket_edges(n)
        check(edges[0] == 0 and edges[-1] == n and all(a < b for a, b in zip(edges, edges[1:])) or n == 0
              and edges == [0], f"{n} rows: buckets hold each once")
        check(len(edges) - 1 == n if n <= 800 else len(edges) - 1 <= 801, f"{n} rows: {len(edges) - 1} buckets")
        if n > 800:
            check(edges[:12] == list(range(12)) and max(b - a for a, b in zip(edges, edges[1:])) <= n / 500 + 1,
                  f"{n} rows: the first stand alone, none is longer than a 500th")
        if n > 10000:
            middle = next(i for i, e in enumerate(edges) if e >= math.sqrt(n))
            check(middle >= 40 and edges[middle + 1] - edges[middle] <= 1 + 0.06 * edges[middle],
                  f"{n} rows: buckets grow with the step")
        rows = [{"step": 3 * i + 1, "loss": draw.gauss(0, 1) if draw.random() < 0.9 else None, "tokens": 8,
                 "step_ms": 500, "lr": 0.5} for i in range(n)]
        if n > 100:
            rows[n // 2]["loss"], rows[n // 3]["loss"] = 1e6, -1e6
        report.count_up(rows)
        out = report.thin(rows, ["loss", "lr"])
        values = lambda i: [r["loss"] for r in rows[edges[i]:edges[i + 1]] if r["loss"] is not None]
        loss, buckets = out["loss"], range(len(edges) - 1)
        low, high = loss.get("low", loss["mean"]), loss.get("high", loss["mean"])
        near = lambda a, b: (a is None) == (b is None) and (a is None or abs(a - b) <= 1e-5 * max(abs(b), 1e-3))
        check(all(near(low[i], min(values(i), default=None)) and near(high[i], max(values(i), default=None))
                  for i in buckets), f"{n} rows: least and greatest of each bucket")
        check(all(near(loss["mean"][i], sum(values(i)) / len(values(i)) if values(i) else None) or n > 100
                  and max(map(abs, values(i))) == 1e6 for i in buckets), f"{n} rows: mean of each bucket")
        if n > 100:
            check(max(v for v in high if v is not None) == 1e6 and min(v for v in low if v is not None) == -1e6,
                  f"{n} rows: the extremes are kept")
        check(sum(out["n"]) == n and (n == 0 or out["step"][-1] == rows[-1]["step"] and out["tokens"][-1] == 8 * n
                                      and abs(out["seconds"][-1] - n / 2) < 1e-5 * n + 1e-9), f"{n} rows: counts")
        check("low" not in out["lr"] and all(v == 0.5 for v in out["lr"]["mean"]),
              f"{n} rows: a range is omitted where there is none")
    figures = report.end_figures([dict(report.flatten(log_line(i, val_loss=v, step_ms=m)),
                                       so_far={"step": i, "tokens": i, "seconds": i}) for i, v, m in
                                  ((1, None, 10), (2, 3.5, 40), (3, None, 20), (4, 3.0, 70), (5, 3.25, 90))])
    check((figures["val_loss"], figures["best_val_loss"], figures["best_step"], figures["step_ms"],
           figures["peak_mem_bytes"], figures["comm_bytes"]) == (3.25, 3.0, 4, 40, 1005, 123), "end figures")
    check(report.median([4, 1, None, 3, 2]) == 2.5 and report.median([None]) is None, "median")
    samples = [{"step": i, "text": "x" * 30000} for i in range(1000)]
    kept = report.thin_samples(samples)
    check(len(kept) == 40 and kept[0]["step"] == 0 and kept[-1]["step"] == 999 and len(kept[0]["text"]) == 20000,
          "samples are thinned, first and last stay")


# ---- traces

def event(pid, tid, name, begin, end):
    return {"name": name, "ph": "X", "pid": pid, "tid": tid, "ts": begin, "dur": end - begin}


def make_trace(ranks, steps, draw):
    events = []
    for rank in range(ranks):
        events.append({"name": "process_name", "ph": "M", "pid": rank, "tid": 0,
                       "args": {"name": f"rank {rank}: t 0 p {rank} d 0"}})
        for tid, track in enumerate(("compute", "tensor", "tensor 2", "step", "wait")):
            events.append({"name": "thread_name", "ph": "M", "pid": rank, "tid": tid, "args": {"name": track}})
        t = 500.0 + rank
        for step in range(1, steps + 1):
            begin = t
            for name in ("zero gradients", "forward 0", "chunk 1 forward 0", "backward 0", "backward weight half 0",
                         "chunk 1 backward input half 0", "norm", "update tied"):
                t += draw.choice((0, 0, 30.0))
                length = draw.uniform(10, 200)
                events.append(event(rank, 0, name, t, t + length))
                events.append(event(rank, draw.choice((1, 2)), "all-reduce", t + length / 2, t + length))
                if draw.random() < 0.5:
                    events.append(event(rank, 4, "all-reduce", t + length * 0.75,
                                        t + length + draw.choice((0, 20.0, 250.0))))
                t += length
            events.append(event(rank, 3, f"step {step}", begin, t))
    draw.shuffle(events)
    return events


def test_traces(work):
    draw = random.Random(3)
    path = os.path.join(work, "trace.json")
    with open(path, "w", encoding="utf-8") as f:
        json.dump({"traceEvents": make_trace(3, 9, draw) + [7, {"ph": "X"},
                                                            {"ph": "X", "pid": 0, "ts": "1", "dur": 2, "name": "x"}],
                   "otherData": {"schedule": "1f1b", "p": 3}}, f)
    trace = report.read_trace(path)
    check(sorted(trace["ranks"]) == [0, 1, 2]
          and {s[0] for s in trace["ranks"][1]} == {"compute", "tensor", "step", "wait"},
          "tracks of several threads are one")
    kinds = {"forward 3": "forward", "chunk 2 backward 12": "backward", "backward input half 1": "backward",
             "chunk 1 backward weight half 0": "weight", "update tied": "update", "zero gradients": "other",
             "norm": "other"}
    check(all(report.kind_of(name) == kind for name, kind in kinds.items()), "kinds of work")
    for rank, spans in trace["ranks"].items():
        begin, end = 900.0, 5500.0
        got = report.shares(spans, begin, end)
        n, counts = 20000, {}
        starts = sorted(spans, key=lambda s: s[2])
        for i in range(n):  # a clock that is read n times
            at = begin + (i + 0.5) * (end - begin) / n
            now = [s for s in starts if s[2] <= at < s[3]]
            work_now = next((report.kind_of(s[1]) for s in now if s[0] == "compute"), "idle")
            if work_now != "idle" and any(s[0] == "wait" for s in now):
                work_now = "wait"
            counts[work_now] = counts.get(work_now, 0) + 1
        check(all(abs(got[k] - counts.get(k, 0) / n) < 2e-3 for k in got) and abs(sum(got.values()) - 1) < 1e-3,
              f"rank {rank}: where the time goes, by a clock")
    shown = report.thin_trace(trace)
    check(len(shown["steps"]) == 9 and shown["recorded"] == 9
          and sum(len(r["spans"]) for r in shown["ranks"]) == sum(1 for s in trace["ranks"].values() for x in s
                                                                  if x[0] != "step"),
          "a small trace is in the page whole")
    again = sorted((shown["tracks"][t], shown["names"][n], round(a, 1), round(d, 1)) for t, n, a,
                   d in shown["ranks"][1]["spans"])
    zero = report.steps_of(trace)[0][1]
    check(again == sorted((s[0], s[1], round(s[2] - zero, 1), round(s[3] - s[2], 1)) for s in trace["ranks"][1]
                          if s[0] != "step"), "with each span as it was")
    by_length = sorted(b - a for _, a, b in report.steps_of(trace))
    check(abs((shown["view"][1] - shown["view"][0]) - by_length[4]) < 0.2,
          "what is seen first is the step of median length")
    most, report.MOST_SPANS = report.MOST_SPANS, 150
    small = report.thin_trace(trace)
    report.MOST_SPANS = most
    check(1 <= len(small["steps"]) < 9 and sum(len(r["spans"]) for r in small["ranks"]) <= 150 + 3 * 3
          and small["view"][0] >= 0 and small["view"][1] <= small["length"], "a large one is cut to steps around it")
    numbers = [s[0] for s in small["steps"]]
    check(numbers == list(range(numbers[0], numbers[0] + len(numbers))), "which follow each other")
    bare = {"file": "x", "about": {}, "labels": {0: "rank 0"}, "ranks": {0: [("compute", "forward 0", 5.0, 9.0)]}}
    check(report.thin_trace(bare)["view"] == [0, 4.0] and report.thin_trace({"ranks": {}}) is None
          and report.thin_trace(None) is None, "a trace without steps, without spans, and none")


# ---- the page

def test_names(work):
    """Names of runs that are what the template's places are named."""
    names = ['x"DATA"y', "x<!--TITLE-->y"]
    for name in names:
        write_log(os.path.join(work, name), [log_line(1)])
    out = os.path.join(work, "names.html")
    run(*(os.path.join(work, name) for name in names), "-o", out)
    with open(out, encoding="utf-8") as f:
        page = f.read()
    check([r["name"] for r in data_of(page)["runs"]] == names and
          '<title>x"DATA"y, x&lt;!--TITLE--&gt;y</title>' in page, "a run may be named as a place of the template")


def test_page(work):
    test_names(work)
    lines = [log_line(i, val_loss=3.0 if i % 10 == 0 else None) for i in range(1, 51)]
    first, second = os.path.join(work, "a", "run"), os.path.join(work, "b", "run")
    nasty = "</script><script>alert(1)</script><!-- \u2028 & \" ' \\ \U0001f600 \ufffd"
    write_log(first, lines + ['{"step":51,"lo'])
    write_log(second, [log_line(i, **({"skipped": True} if i % 5 == 0 and i <= 1500 else {}))
                       for i in range(1, 3001)] + ['{"step":3001,"loss":nan}'])
    with open(os.path.join(first, "stdout.txt"), "wb") as f:
        f.write(f"step    10/50 | loss 1\nsample:\n\n{nasty}\n".encode().replace(b"\xef\xbf\xbd", b"\xff"))
    out = os.path.join(work, "page.html")
    made = run(first, second, "-o", out)
    check(made.returncode == 0, f"two runs are a page {made.stderr[-300:]}")
    with open(out, encoding="utf-8") as f:
        page = f.read()
    data = data_of(page)
    runs = data["runs"]
    check([r["name"] for r in runs] == ["a/run", "b/run"] and "<title>a/run, b/run</title>" in page,
          "runs of one name are distinguished")
    check(runs[0]["samples"] == [{"step": 10, "text": nasty}], "a text comes through as it is")
    check(page.count("<script") == 2 and page.count("</script>") == 2 and page.count("<!--") == 1,
          "and does not become a part of the page")
    check(not re.search(r"https?:|\bsrc\s*=|<link|@import|url\((?!#)|fetch\(|XMLHttp|import\(", page),
          "the page asks for nothing from elsewhere")
    check(runs[0]["notes"] == ["1 line of log.jsonl could not be read and is left out"],
          "what could not be read is said")
    check(runs[1]["notes"] == ["the loss was not a finite number in 1 step",
                               "loss or gradient were not finite, and no update was made, in 300 steps"]
          and [m["step"] for m in runs[1]["marks"]] == [*range(5, 1005, 5), 3001], "and a loss that is not finite")
    check(runs[0]["curves"]["step"] == list(range(1, 51)) and runs[0]["curves"]["tp"]["mean"] == [100] * 50
          and "dp_inter_site" not in runs[0]["curves"], "curves")
    check(runs[0]["validation"]["step"] == [10, 20, 30, 40, 50] and runs[0]["validation"]["tokens"][-1] == 50 * 4096
          and runs[0]["validation"]["seconds"][0] == 2.5, "validation has its own steps")
    check(data["reload"] == 0 and "3001 steps are drawn as" in runs[1]["thinned"] and not runs[0]["thinned"],
          "a page that is not watched stays; thinning is said")
    sizes = []
    for n in (5000, 40000):
        write_log(os.path.join(work, f"long{n}"), [log_line(i, loss=5 + math.sin(i * 1.7)) for i in range(1, n + 1)])
        run(os.path.join(work, f"long{n}"))
        sizes.append(os.path.getsize(os.path.join(work, f"long{n}", "report.html")))
    check(sizes[1] < 1.25 * sizes[0] < 500e3, f"eight times as many steps make no larger page: {sizes}")
    write_log(os.path.join(work, "empty"), [])
    check(run(os.path.join(work, "empty")).returncode == 0, "a run without a step is a page")
    check(run(os.path.join(first, "log.jsonl")).returncode == 0 and os.path.exists(os.path.join(first, "report.html")),
          "a log by its own name")
    evil = os.path.join(work, "<b>&")
    write_log(evil, lines)
    run(evil)
    with open(os.path.join(evil, "report.html"), encoding="utf-8") as f:
        check("<title>&lt;b&gt;&amp;</title>" in f.read(), "a name is no HTML")
    for wrong in (("nowhere",), (first, "--trace", "nowhere"), (first, "--trace", os.path.join(first, "log.jsonl")),
                  (first, "-o", os.path.join(work, "no", "where.html")), (first, "--trace", out, "--trace", out),
                  (first, "--watch", "0"), (first, "--tensorboard", work, "-o", out)):
        made = run(*wrong, cwd=work)
        check(made.returncode in (1, 2) and "Traceback" not in made.stderr,
              f"{' '.join(wrong[1:]) or wrong[0]}: {made.stderr.strip().splitlines()[-1:]}")
    check(not [name for _, _, names in os.walk(work) for name in names if ".tmp" in name], "nothing temporary is left")


def test_watch(work):
    folder = os.path.join(work, "live")
    write_log(folder, [log_line(1)])
    with open(os.path.join(folder, "options.txt"), "w", encoding="utf-8") as f:
        f.write("--steps 5\n")
    process = subprocess.Popen([sys.executable, REPORT, folder, "--watch", "0.2"], stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True)
    out, seen = os.path.join(folder, "report.html"), []
    for step in (2, 3, 5):
        deadline = time.time() + 200
        while time.time() < deadline and not (os.path.exists(out) and seen.count(step) == 1):
            if os.path.exists(out):
                with open(out, encoding="utf-8") as f:
                    data = data_of(f.read())
                if data["runs"][0]["figures"]["step"] == (step - 1 if step < 5 else 3):
                    seen.append(step)
                    check(data["reload"] == 0.2 and not data["runs"][0]["done"],
                          f"watching: the page before step {step} reloads itself")
                    with open(os.path.join(folder, "log.jsonl"), "a", encoding="utf-8") as f:
                        f.write(json.dumps(log_line(step)) + "\n")
                    break
            time.sleep(0.05)
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
    with open(out, encoding="utf-8") as f:
        data = data_of(f.read())
    check(process.returncode == 0 and data["reload"] == 0 and data["runs"][0]["done"]
          and data["runs"][0]["figures"]["step"] == 5, "when the run is done, the watch ends with a page that stays")


SCRIPT = r"""
const near = (a, b) => (a === null) === (b === null) && (a === null || Math.abs(a - b) <=
  1e-9 * Math.max(1, Math.abs(b)));
const out = [], check = (ok, what) => out.push([Boolean(ok), what]);
let seed = 1; const draw = () => (seed = (seed * 1103515245 + 12345) % 2147483648) / 2147483648;
for (const width of [0.001, 0.05, 3]) {
  const at = [], y = [], n = []; let x = 0;
  for (let i = 0; i < 60; i++) {
    x += draw() * 0.05;
    at.push(x); y.push(draw() < 0.2 ? null : draw() * 10); n.push(1 + Math.floor(draw() * 9));
  }
  y[0] = null;
  const brute = y.map((v, i) => {
    let s = 0, w = 0;
    for (let j = 0; j < y.length; j++) {
      const k = y[j] === null ? 0 : n[j] * Math.exp(-Math.abs(at[i] - at[j]) / width);
      s += k * y[j], w += k;
    }
    return v === null ? null : s / w;
  });
  check(smoothed(at, y, n, width).every((v, i) => near(v, brute[i])),
    `smoothing by ${width} is the mean with those weights`);
}
check(smoothed([0, 1], [1, 5], [1, 1], 0).join() === "1,5", "no smoothing leaves values as they are");
check(smoothed([0, 0.1, 0.2], [7, 7, 7], [1, 100, 3], 0.1).every(v => near(v, 7)), "what is constant stays so");
for (const [a, b, n] of [[0, 1, 5], [0.0013, 0.0078, 5], [-3, 17, 7], [1, 300, 8], [0, 524288000, 6], [1e-9, 2e-9, 4],
  [99.5, 99.6, 5]]) {
  const t = ticks(a, b, n, false), d = t[1] - t[0];
  check(t.length >= 2 && t.length <= n + 2 && t.every(v => v >= a - 1e-9 * (b - a) && v <= b + 1e-9 * (b - a)) &&
    t.every((v, i) => !i || Math.abs(v - t[i - 1] - d) < 1e-6 * d) &&
    [1, 2, 5].map(m => Math.log10(d / m)).some(r => Math.abs(r - Math.round(r)) < 1e-6), `ticks of ${a} to ${b}: ${t}`);
}
for (const [a, b] of [[1, 10], [0.3, 40], [1, 1e6], [1e-5, 1e5], [2, 5], [3, 1e12]]) {
  const t = ticks(a, b, 6, true);
  check(t.length >= 2 && t.length <= 8 &&
    t.every((v, i) => v >= a * 0.999 && v <= b * 1.001 && (!i || v > t[i - 1])),
    `logarithmic ticks of ${a} to ${b}: ${t}`);
}
check(ticks(3, 3, 5, false).length === 1, "ticks of one value");
const list = [1, 4, 4.5, 10, 20];
check([-5, 1, 2.4, 2.6, 4.4, 7.2, 7.3, 15.1, 99].map(x => list[nearest(list, x)]).join() ===
  "1,1,1,4,4.5,4.5,10,20,20" && nearest([], 1) === -1 && nearest([5], 1) === 0, "the nearest of a list");
for (const log of [false, true]) {
  const s = scale(2, 50, log);
  check(near(s.to(2), 0) && near(s.to(50), 1) && [0, 0.3, 1].every(u => near(s.to(s.from(u)), u)) &&
    near(s.to(log ? 10 : 26), 0.5), `scale ${log ? "logarithmic" : "linear"}`);
}
check(isNaN(scale(1, 2, true).to(0)) && scale(3, 3, false).to(3) === 0.5, "what has no place on an axis");
check(line([0, 1, 2, 3, NaN, 5], [1, 2, null, 4, 5, 6]) === "M0.0 1.0L1.0 2.0M3.0 4.0M5.0 6.0",
  "a line breaks where a value is missing");
check(band([0, 1, 2, 3], [5, 6, null, 8], [1, 2, 3, 4]) === "M0.0 5.0L1.0 6.0L1.0 2.0L0.0 1.0ZM3.0 8.0L3.0 4.0Z",
  "an area has a piece for each stretch");
const cases = [[2.3758123, "loss", "2.3758"], [71234567890, "B", "71.2 GB"], [999.7, "B", "1 kB"], [0, "B", "0 B"],
  [0.1234, "%", "12.3 %"], [1, "%", "100 %"], [54061, "", "54061"], [99999999, "", "100 M"], [54061, "si", "54.1 k"],
  [0.0003, "", "3.0e-4"], [0, "", "0"], [null, "", "–"], [NaN, "", "–"], [-4200000, "", "-4.2 M"], [0.5, "", "0.5"],
  [3725, "s", "1:02 h"], [59.6, "s", "1:00 min"], [75, "s", "1:15 min"], [5.71, "s", "5.7 s"], [12, "s", "12 s"],
  [864000, "s", "10 days"], [100, "", "100"], [1500, "", "1500"]];
for (const [x, unit, text] of cases) check(readable(x, unit) === text, `${x} ${unit} is ${text}: ${readable(x, unit)}`);
check(escaped(`<a href="x">&`) === "&lt;a href=&quot;x&quot;&gt;&amp;", "text is no HTML");
console.log(JSON.stringify(out));
"""


def test_script(work):
    node = shutil.which("node")
    if not node:
        print("      node is not here: what the page computes is left out")
        return
    with open(os.path.join(ROOT, "scripts", "report.html"), encoding="utf-8") as f:
        script = re.findall(r"<script>(.*?)</script>", f.read(), re.S)[0]
    pure = script[script.index("// ==== 1."):script.index("// ==== 2.")]
    for name, text in (("whole.js", script), ("pure.js", '"use strict";\n' + pure + SCRIPT)):
        with open(os.path.join(work, name), "w", encoding="utf-8") as f:
            f.write(text)
    check(subprocess.run([node, "--check", os.path.join(work, "whole.js")], capture_output=True,
                         timeout=600).returncode == 0, "the page's script is one")
    done = subprocess.run([node, os.path.join(work, "pure.js")], capture_output=True, text=True, timeout=600)
    check(done.returncode == 0, f"node runs it {done.stderr[-300:]}")
    for ok, what in json.loads(done.stdout) if done.returncode == 0 else ():
        check(ok, what)


# ---- TensorBoard: a reader of our own

def crc_by_bits(data):
    crc = 0xFFFFFFFF
    for byte in data:
        for bit in range(8):
            top = (crc ^ byte >> bit) & 1
            crc = crc >> 1 ^ 0x82F63B78 * top
    return ~crc & 0xFFFFFFFF


def unmasked(masked):
    rotated = (masked - 0xA282EAD8) & 0xFFFFFFFF
    return (rotated << 15 | rotated >> 17) & 0xFFFFFFFF


def records(data):
    at = 0
    while at < len(data):
        length, crc = struct.unpack_from("<QI", data, at)
        content = data[at + 12:at + 12 + length]
        assert unmasked(crc) == crc_by_bits(data[at:at + 8]), "CRC of a length"
        assert unmasked(struct.unpack_from("<I", data, at + 12 + length)[0]) == crc_by_bits(content), "CRC of a record"
        yield content
        at += 16 + length


def read_varint(data, at):
    n = shift = 0
    while True:
        n |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 128:
            return n, at


def fields(data):
    """{number: list of values} of a message."""
    out, at = {}, 0
    while at < len(data):
        key, at = read_varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = read_varint(data, at)
        else:
            length = {1: 8, 5: 4}.get(kind)
            if length is None:
                assert kind == 2
                length, at = read_varint(data, at)
            assert at + length <= len(data)
            value, at = data[at:at + length], at + length
        out.setdefault(key >> 3, []).append(value)
    return out


def read_events(path):
    with open(path, "rb") as f:
        for content in records(f.read()):
            event_fields = fields(content)
            yield struct.unpack("<d", event_fields[1][0])[0], event_fields.get(2, [0])[0], event_fields


def as_float32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def test_tensorboard(work):
    check(tfevents.crc32c(b"123456789") == 0xE3069283 and tfevents.crc32c(bytes(32)) == 0x8A9136AA,
          "CRC-32C of RFC 3720's examples")
    draw = random.Random(1)
    blocks = [bytes(draw.randrange(256) for _ in range(n)) for n in (0, 1, 7, 300)]
    check(all(tfevents.crc32c(b) == crc_by_bits(b) and unmasked(tfevents.masked(crc_by_bits(b))) == crc_by_bits(b)
              for b in blocks), "and of random bytes, bit by bit")
    check(all(read_varint(tfevents.varint(n), 0) == (n % 2 ** 64, len(tfevents.varint(n)))
              for n in (0, 1, 127, 128, 300, 2 ** 35, 2 ** 63, -1)), "varints")
    folder, out = os.path.join(work, "board"), os.path.join(work, "events")
    lines = [log_line(i, val_loss=3.5 if i == 200 else None, mfu=None) for i in range(1, 301)]
    write_log(folder, lines[:250])
    with open(os.path.join(folder, "stdout.txt"), "w", encoding="utf-8") as f:
        f.write("step   100/300 | loss 1\nsample:\n\ntwo\nlines \u00e9\n")
    with open(os.path.join(folder, "options.txt"), "w", encoding="utf-8") as f:
        f.write("# started: 2026-01-02 03:04:05 UTC\n")
    path = os.path.join(out, "board", "events.out.tfevents.0000000000.threefold")
    check(run(folder, "--tensorboard", out).returncode == 0, "event files are written")
    events = list(read_events(path))
    check(events[0][2][3] == [b"brain.Event:2"] and events[0][0] == 1767323045,
          "the first record names the version, and when the run began")
    scalars, texts = {}, []
    for wall, step, event_fields in events[1:]:
        for value in fields(event_fields[5][0])[1]:
            v = fields(value)
            if 2 in v:
                scalars.setdefault(v[1][0].decode(), []).append((step, struct.unpack("<f", v[2][0])[0], wall))
            else:
                tensor, plugin = fields(v[8][0]), fields(fields(v[9][0])[1][0])
                texts.append((step, v[1][0], tensor[1], tensor[8], plugin[1]))
    check([(s, v) for s, v, _ in scalars["loss/training"]] == [(x["step"], as_float32(x["loss"])) for x in lines[:250]],
          "each loss at its step, as a float32")
    check([(s, v) for s, v, _ in scalars["loss/validation"]] == [(200, 3.5)] and "speed/mfu" not in scalars,
          "what is missing is omitted")
    check(scalars["memory/peak MB"][9][1] == as_float32(1010e-6)
          and scalars["traffic/tensor MB"][0][1] == as_float32(100e-6), "bytes in MB")
    check(all(abs(w - 1767323045 - 0.25 * s) < 1e-6 for s, _, w in scalars["step/gradient norm"]),
          "times are the start and the steps' seconds")
    check(texts == [(100, b"the model writes", [7], ["    two\n    lines \u00e9".encode()], [b"text"])],
          "what the model wrote, as text")
    with open(path, "rb") as f:
        before = f.read()
    node = os.stat(path).st_ino
    write_log(folder, lines)
    run(folder, "--tensorboard", out)
    with open(path, "rb") as f:
        after = f.read()
    check(os.stat(path).st_ino == node and after.startswith(before)
          and len(list(read_events(path))) == len(events) + 50, "a run that goes on grows its file")
    write_log(folder, lines[:5])
    run(folder, "--tensorboard", out)
    check(os.stat(path).st_ino != node and len(list(read_events(path))) == 6,
          "a run that was taken back gets a new one")


# ---- a real run

def test_run(work):
    if not os.path.exists(TRAIN):
        check(False, f"{TRAIN} is not built: make train_gpt")
        return
    text, out, trace = (os.path.join(work, name) for name in ("text.txt", "real", "real.json"))
    with open(text, "w", encoding="utf-8") as f:
        f.write(" ".join(map(str, range(20000))))
    options = ["--layers", "1", "--hidden", "32", "--heads", "2", "--seq", "32", "--data", text, "--steps", "20",
               "--eval-every", "5", "--sample-every", "10",
               "--global-batch", "4", "--micro-batch", "2", "--out", out]
    made = subprocess.run([TRAIN, *options, "--trace", trace], capture_output=True, text=True, timeout=600,
                          stdin=subprocess.DEVNULL)
    check(made.returncode == 0, f"a run of the trainer {made.stderr[-300:]}")
    with open(os.path.join(out, "stdout.txt"), "w", encoding="utf-8") as f:
        f.write(made.stdout)
    check(run(out, "--trace", trace).returncode == 0, "is a page")
    with open(os.path.join(out, "report.html"), encoding="utf-8") as f:
        one = data_of(f.read())["runs"][0]
    with open(os.path.join(out, "log.jsonl"), encoding="utf-8") as f:
        log = [json.loads(line) for line in f]
    check(one["done"] and one["steps"] == 20 and not one["notes"] and one["figures"]["step"] == 20,
          "which knows that it is done")
    check(all(abs(a - b["loss"]) < 1e-5 * b["loss"] for a, b in zip(one["curves"]["loss"]["mean"], log))
          and one["validation"]["step"] == [5, 10, 15, 20], "with its losses")
    check(one["given"]["steps"] == "20" and one["given"]["out"] == out and one["implied"]["lr"] == "0.003"
          and one["implied"]["dp"] == "1", "its options, and what follows from them")
    check({"model", "device", "mesh", "started", "ranks"} <= set(one["about"]),
          f"its first lines: {sorted(one['about'])}")
    printed = report.read_stdout(os.path.join(out, "stdout.txt"))[2]
    check([s["step"] for s in one["samples"]] == [10, 20]
          and [s["text"].strip("\n") for s in one["samples"]] == [s["text"] for s in printed],
          "what it wrote, as it was printed")
    shares = one["trace"]["ranks"][0]["shares"]
    check(one["trace"]["recorded"] == 20 and one["trace"]["names"].count("update") == 1
          and one["trace"]["about"]["m"] == 2, "the schedule as it ran")
    check(all(shares[k] > 0 for k in ("forward", "backward", "update")) and abs(sum(shares.values()) - 1) < 1e-3,
          f"and where the time went: {shares}")
    check(one["checkpoint"]["name"] == "step_00000020" and one["checkpoint"]["config"]["n_layer"] == 1,
          "its checkpoint")


def main():
    tests = {"lines": test_log_lines, "evaluations": test_evaluations, "options": test_options, "damage": test_damage,
             "thinning": lambda work: test_thinning(), "traces": test_traces, "page": test_page,
             "script": test_script, "watch": test_watch, "tensorboard": test_tensorboard, "run": test_run}
    for name in sys.argv[1:] or tests:
        with tempfile.TemporaryDirectory() as work:
            tests[name](work)
    finish()


if __name__ == "__main__":
    sys.exit(main())
