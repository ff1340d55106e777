#!/usr/bin/env python3
"""changed.py TEST...: the tests for `make quick`. For each source that differs from origin/main (without one: from the
last commit), two tests that include it: first those that say its name, then those with the fewest other sources."""
import os
import subprocess
import sys


def lines(*command):
    return subprocess.run(command, capture_output=True, text=True).stdout.split()


base = lines("git", "merge-base", "HEAD", "origin/main") or ["HEAD"]
changed = lines("git", "diff", "--name-only", *base) + lines("git", "ls-files", "--others", "--exclude-standard")
changed = {name for name in changed if name.endswith((".h", ".c", ".cu", ".cuh"))}
sources, text = {}, {}
for test in sys.argv[1:] if changed else []:
    path = f"dev/test/unit/{test}.c" if test != "test_gpt" else "test_gpt.c"
    found = lines(os.environ.get("CC", "gcc"), "-MM", "-x", "c", path)[1:]
    sources[test] = {os.path.normpath(name) for name in found if name != "\\"}
    with open(path, encoding="utf-8") as f:
        text[test] = f.read()
chosen = set()
for name in changed:
    word = os.path.splitext(os.path.basename(name))[0]
    including = [test for test in sources if name in sources[test]]
    chosen.update(sorted(including, key=lambda test: (word not in text[test], len(sources[test])))[:2])
print(" ".join(sorted(chosen)))
