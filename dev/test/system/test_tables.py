#!/usr/bin/env python3
"""
test_tables.py: do the tables that pictures are drawn from (build/tables, BUILD) say what they should? Passes with their
times, collectives by playing their messages with sets of ranks, matrices by painting their rectangles, and measured.py
by a trace whose steps are a schedule's table. Bubbles, buckets and rounding: the book's outputs (check_docs.py). The
last line is "N passed, N failed".
"""
import collections, itertools, json, os, re, sys, tempfile

from checks import ROOT, check, finish, launch
import measured


def check_collective(topology, algorithm, kind, ranks):
    """A chunk for each rank; every message on a link of its own."""
    rows, note = measured.table("collective", "--topology", topology, "--algorithm", algorithm, "--kind", kind)
    have = {(r, c): {r} if kind != "all-gather" or r == c else set() for r in range(ranks) for c in range(ranks)}
    wrong = 0
    for step in sorted({row.step for row in rows}):
        sent = dict(have)
        for row in (row for row in rows if row.step == step):
            came, here = sent[row.source, row.owner], have[row.to, row.owner]
            wrong += not came or (bool(came & here) if row.add else not came >= here)
            have[row.to, row.owner] = here | came
            wrong += kind == "all-reduce" and not row.add and row.to == row.owner  # which has the sum already
    full = [set(range(ranks)) if kind != "all-gather" else {c} for c in range(ranks)]
    missing = sum(have[r, c] != full[c] for r, c in have if kind != "reduce-scatter" or r == c)
    check(wrong + missing == 0, f"{kind}, {note}: {wrong} wrong messages, {missing} chunks missing")


def check_routes():
    """Halving-doubling on a torus: rank r and r xor 1, 2, 4, 8 exchange, over as many links as they are apart."""
    rows, note = measured.table("collective", "--algorithm", "halving-doubling")
    want = [sum(min((x - y) % 4, (y - x) % 4) for r in range(16) for x, y in zip(divmod(r, 4), divmod(r ^ bit, 4)))
            for bit in (1, 2, 4, 8)]
    found = collections.Counter(row.step for row in rows)
    check(sorted(found.values()) == sorted(2 * want), f"{note}: links of a step {found}")


def check_matrices(options, copies):
    """Paints what is written, and counts all that is held."""
    rows, _ = measured.table("matrices", "--model", "tiny", *options)
    sizes = {row.tensor: row.elements for row in measured.table("tensors", "--model", "tiny")[0]}
    held, canvas, twice = collections.Counter(), {}, 0
    width = {name: max(r.x + r.width for r in rows if r.matrix == name) for name in {row.matrix for row in rows}}
    for row in rows:
        held[row.matrix] += row.width * row.height
        if row.writes:
            paint = canvas.setdefault(row.matrix, bytearray(sizes[row.matrix]))
            for y in range(row.y, row.y + row.height):
                at = slice(y * width[row.matrix] + row.x, y * width[row.matrix] + row.x + row.width)
                twice += any(paint[at])
                paint[at] = b"\1" * row.width
    check(twice == 0 and canvas.keys() == held.keys() and all(all(paint) for paint in canvas.values()) and
          all(held[name] == sizes[name] * copies(name) for name in held),
          f"{' '.join(options)}: every element of {len(canvas)} matrices is written once, held by as many as should")


def check_measured(kind, p, v, options):
    """A trace whose three steps are a table's: measured and predicted are that table."""
    rows, _ = measured.table("schedule", "--schedule", kind, "--pp", p, "--vpp", v, "--microbatches", 4, *options)
    length = max(row.end for row in rows)
    events = [{"name": "process_name", "ph": "M", "pid": r, "tid": 0, "args": {"name": f"rank {r}: t 0 p {r} d 0"}}
              for r in range(p)]
    events += [{"name": "thread_name", "ph": "M", "pid": r, "tid": tid, "args": {"name": name}}
               for r in range(p) for tid, name in enumerate(("compute", "step"))]
    for step in range(3):
        zero = 1e3 * step * (length + 5)
        events += [{"name": f"step {step + 1}", "ph": "X", "pid": r, "tid": 1, "ts": zero, "dur": 1e3 * (length + 3)}
                   for r in range(p)]
        events += [{"name": f"chunk {row.chunk} {row.kind} {row.micro_batch}", "ph": "X", "pid": row.stage, "tid": 0,
                    "ts": zero + 1e3 * (row.start + 2), "dur": 1e3 * (row.end - row.start)} for row in rows]
    with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
        json.dump({"traceEvents": events, "otherData": {"schedule": kind, "p": p, "v": v, "m": 4}}, f)
        f.flush()
        out = launch(sys.executable, f"{ROOT}/dev/plot/measured.py", f.name).stdout
    step, predicted, idle, predicted_idle = map(float, re.findall(r"\d+\.\d+", out))
    work = sum(row.end - row.start for row in rows)
    check(abs(step - length - 3) < 1e-3 and abs(predicted - step) < 1e-2 and abs(predicted_idle - idle) < 1e-3 and
          abs(idle - (p * (length + 3) - work) / work) < 1e-4,
          f"measured.py, {kind}: {step} {predicted} {idle} {predicted_idle}")


def main():
    for kind in "all-reduce", "reduce-scatter", "all-gather":
        check_collective("torus:4x4", "multitree", kind, 16)
        check_collective("ring:6", "ring", kind, 6)
    check_matrices(("--tp", "2", "--pp", "2", "--dp", "2"), lambda name: 4 if "transformer.w" in name else 2)
    check_matrices(("--tp", "4"), lambda name: 4 if "wpe" in name else 1)
    check_routes()
    rows, _ = measured.table("schedule", "--schedule", "zb-h1", "--pp", 2, "--forward", "4,5", "--input", 2,
                             "--weight", 3)
    want = {"forward": (4, 5), "backward input half": (2, 2), "backward weight half": (3, 3)}
    passes = {(row.kind, row.stage, row.micro_batch) for row in rows}
    check(len(rows) == len(passes) == 3 * 2 * 8 and
          all(row.end - row.start == want[row.kind][row.stage] for row in rows), "each pass once, for its time")
    check_measured("1f1b", 4, 1, ("--forward", "1,2,3,2", "--input", "2,2,5,3", "--transfer", "0.5"))
    check_measured("zb-v", 2, 2, ("--forward", "1.5,2,1,3", "--input", "2", "--weight", "1,2"))
    finish()


main()
