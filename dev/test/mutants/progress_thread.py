"""Faults of the pauses of progress threads. Test: test_comm_progress_thread."""
import mutate

THREAD = "comm/comm_progress_thread.h"

FAULTS = [
    ("every group is urgent", "test_comm_progress_thread", THREAD,
     "urgent ? COMM_THREAD_URGENT : COMM_THREAD_PAUSE", "COMM_THREAD_URGENT"),
    ("no group is urgent", "test_comm_progress_thread", THREAD,
     "urgent ? COMM_THREAD_URGENT : COMM_THREAD_PAUSE", "COMM_THREAD_PAUSE"),
    ("a rank that waits makes the thread of any group spin", "test_comm_progress_thread", THREAD,
     "return urgent && still < COMM_THREAD_HASTE", "return still < COMM_THREAD_HASTE"),
    ("pauses do not grow", "test_comm_progress_thread", THREAD,
     "fmin(COMM_THREAD_SHARE * still, COMM_THREAD_LAZY)", "0"),
    ("pauses grow for ever", "test_comm_progress_thread", THREAD,
     "fmin(COMM_THREAD_SHARE * still, COMM_THREAD_LAZY)", "COMM_THREAD_SHARE * still"),
]


def run(test, _planted):
    return f"build/{test}", mutate.ranks(2) + [f"build/{test}", "--short"]
