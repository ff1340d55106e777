#!/usr/bin/env python3
"""changed.py TEST...: the tests for `make quick`. For each source that differs from origin/main (without one: from the
last commit), the two tests with the fewest other sources that include it."""
import os
import subprocess
import sys


def lines(*command):
    return subprocess.run(command, capture_output=True, text=True).stdout.split()


def main():
    base = lines("git", "merge-base", "HEAD", "origin/main") or ["HEAD"]
    changed = lines("git", "diff", "--name-only", *base) + lines("git", "ls-files", "--others", "--exclude-standard")
    changed = {name for name in changed if name.endswith((".h", ".c", ".cu", ".cuh"))}
    if not changed:
        return
    sources = {}
    for test in sys.argv[1:]:
        path = f"dev/test/unit/{test}.c" if test != "test_gpt" else "test_gpt.c"
        found = lines(os.environ.get("CC", "gcc"), "-MM", "-x", "c", path)[1:]
        sources[test] = {os.path.normpath(name) for name in found if name != "\\"}
    chosen = set()
    for name in changed:
        chosen.update(sorted((t for t in sources if name in sources[t]), key=lambda t: len(sources[t]))[:2])
    print(" ".join(sorted(chosen)))


main()
