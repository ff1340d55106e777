"""Faults of the pauses of progress threads and of the program that measures what they hide. Tests:
test_comm_progress_thread, test_hidden.py without its network."""
import sys

import mutate

THREAD, PY = "comm/comm_progress_thread.h", "dev/experiments/hidden.py"
TESTS = {THREAD: "test_comm_progress_thread", PY: "test_hidden"}

FAULTS = [
    ("every group is urgent", THREAD, "urgent ? COMM_THREAD_URGENT : COMM_THREAD_PAUSE", "COMM_THREAD_URGENT"),
    ("no group is urgent", THREAD, "urgent ? COMM_THREAD_URGENT : COMM_THREAD_PAUSE", "COMM_THREAD_PAUSE"),
    ("a rank that waits makes the thread of any group spin", THREAD, "return urgent && still < COMM_THREAD_HASTE",
     "return still < COMM_THREAD_HASTE"),
    ("pauses do not grow", THREAD, "fmin(COMM_THREAD_SHARE * still, COMM_THREAD_LAZY)", "0"),
    ("pauses grow for ever", THREAD, "fmin(COMM_THREAD_SHARE * still, COMM_THREAD_LAZY)", "COMM_THREAD_SHARE * still"),
    ("what is hidden is part of a step", PY, "(sync - ms) / (sync - base)", "(sync - ms) / sync"),
    ("the mean of launches", PY, "return statistics.median(r[key] for r in rows)",
     "return statistics.mean(r[key] for r in rows)"),
    ("the first steps count", PY, "times[SKIP:max(", "times[:max("),
    ("steps at the end count where replicas are alone", PY, "int(part * len(times))", "len(times)"),
    ("a launch of too few steps counts", PY, "if len(times) <= SKIP:", "if not times:"),
]


def run(test, planted):
    if test == "test_hidden":
        return None, [sys.executable, "dev/test/system/test_hidden.py", "--table"]
    return f"build/{test}", mutate.ranks(2) + [f"build/{test}", "--short"]
