#!/usr/bin/env python3
"""test_plants.py [cuda]: faults planted in Hopper's attention, each of which make compare has to see; on the emulator,
or on a GPU of Hopper's kind."""
import os, pathlib, re, subprocess, sys, tempfile

from checks import ROOT, check, finish

sys.path.append(f"{ROOT}/dev/test/mutants")
import mutate

FILE = "kernels/attention_hopper.cuh"
PLANTS = [  # what is wrong, the lines as they are, and the lines with the fault
    ("every query sees the next token", "mask_scores<KEYS, false>(by_columns(p), row, block.first);",
     "mask_scores<KEYS, false>(by_columns(p), row + 1, block.first);"),
    ("dK lacks the scale", "dk[i] *= s.scale * LN_2;", "dk[i] *= 1.0f;"),
    ("tiles are awaited at the ring's first phase", "full[n % SLOTS].wait(n / SLOTS % 2, at);",
     "full[n % SLOTS].wait(0, at);"),
    ("the output is not rescaled when a row's maximum grows", "            scale_rows<HS>(by_columns(o), factor);\n",
     ""),
    ("D is missing in the second tile of keys", "const floatX *k = shared.tiles[n % SLOTS], *v",
     "if (key < block.first) dot[0] = dot[1] = 0;\n            const floatX *k = shared.tiles[n % SLOTS], *v"),
    ("dV of the second warpgroup is halved", "store_head<HS>(dqkv, at.v, own,",
     "for (int i = 0; i < HS / 2 && part == 1; i++) dv[i] *= 0.5f;\n        store_head<HS>(dqkv, at.v, own,"),
]


def plant(what, lines, fault, device):
    """Whether make compare sees it, in a copy of the sources."""
    with tempfile.TemporaryDirectory() as tree:
        mutate.copy_sources(tree)
        path = pathlib.Path(tree, FILE)
        source = path.read_text()
        if source.count(lines) != 1:
            sys.exit(f"test_plants.py: {FILE} does not have {lines!r} once")
        path.write_text(source.replace(lines, fault))
        done = subprocess.run(["make", "-s", "-j2", "compare", f"DEVICE={device}"], cwd=tree, capture_output=True,
                              env=dict(os.environ, ATTENTION="wgmma"), text=True, check=False)
    rows = re.findall(r"^FAIL +(.*?) +error", done.stdout, re.M)
    aborted = re.findall(rf"{FILE}:\d+: (.*)", done.stdout + done.stderr)  # the emulator
    check(rows or aborted, f"{what}: {len(rows)} rows fail; first: {(rows + aborted + ['none'])[0]}")


for planted in PLANTS:
    plant(*planted, "".join(sys.argv[1:]) or "emulated")
finish()
