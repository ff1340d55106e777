#!/usr/bin/env python3
"""changed.py TEST...: the tests for `make quick`. For each source that differs from origin/main (without one: from the
last commit), two tests that include it: first those that say its name, then those with the fewest other sources."""
import functools, os, subprocess, sys

def lines(*command):
    return subprocess.run(command, capture_output=True, text=True).stdout.split()

@functools.lru_cache(None)
def sources_of(path):
    return {os.path.normpath(name) for name in lines(os.environ.get("CC", "gcc"), "-MM", "-x", "c", path)[1:]}

def tests_including(name, tests):
    """Those of the tests that include the source, best first."""
    word, found = os.path.splitext(os.path.basename(name))[0], []
    for test in tests:
        path = f"dev/test/unit/{test}.c" if test != "test_gpt" else "test_gpt.c"
        if name in sources_of(path):
            with open(path, encoding="utf-8") as file:
                found.append((word not in file.read(), len(sources_of(path)), test))
    return [test for *_, test in sorted(found)]

def main(tests):
    base = lines("git", "merge-base", "HEAD", "origin/main") or ["HEAD"]
    changed = lines("git", "diff", "--name-only", *base) + lines("git", "ls-files", "--others", "--exclude-standard")
    sources = [name for name in changed if name.endswith((".h", ".c", ".cu", ".cuh"))]
    print(" ".join(sorted({test for name in sources for test in tests_including(name, tests)[:2]})))

if __name__ == "__main__":
    main(sys.argv[1:])
