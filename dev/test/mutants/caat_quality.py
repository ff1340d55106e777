"""Faults of how CAAT-Net's loss is measured, and of what experiments share. Test: test_caat_quality.py."""
import mutate

QUALITY, RUNS = "dev/experiments/caat_quality.py", "dev/experiments/runs.py"

# What is wrong; the test that has to see it; file, exact text, replacement.
FAULTS = [
    ("the sweep ends at its edge", "quality", QUALITY, "    if best == max(losses):\n        return best * 2\n", ""),
    ("the lowest rate is the best", "quality", QUALITY, "return best / 2 if best == min(losses) else None",
     "return None"),
    ("the worst rate", "quality", QUALITY, "return min(losses, key=losses.get) if losses", "return max(losses) if 0"),
    ("every P = 1 is the same", "quality", QUALITY, "apart <= same", "apart >= 0"),
    ("better where it is worse", "quality", QUALITY, "if got.sign < 0]", "if got.sign > 0]"),
    ("a text without headers", "quality", QUALITY, "('.c', '.h', '.rst', '.txt')", "('.c', '.rst', '.txt')"),
    ("a text of all files", "quality", QUALITY, "if name.endswith(('.c', '.h', '.rst', '.txt'))", "if name"),
    ("a text that is too long", "quality", QUALITY, "f.read(left)", "f.read()"),
    ("one seed more for nothing", "quality", QUALITY, "'confirmed': h, 'why'", "'confirmed': None, 'why'"),
    ("a folder of other settings is continued", "quality", QUALITY, "    if different:", "    if False:"),
    ("an interrupted run is lost with its options", "quality", QUALITY, "!= self.options:", "== self.options:"),
    ("complete runs are repeated", "quality", QUALITY, "and not runs.is_complete(t.folder, t.options)]", "]"),
    ("recorded runs are repeated", "quality", QUALITY, ".get('options') != t.recorded", ".get('options') != 0"),
    ("a record is of any options", "quality", QUALITY, ".get('options') != t.recorded", ".get('options') is None"),
    ("the spread is a variance", "quality", RUNS, "math.sqrt((sa * sa + sb * sb) / 2)", "(sa * sa + sb * sb) / 2"),
    ("half the rule", "quality", RUNS, "<= 2 * spread", "<= spread"),
    ("percent of the other", "quality", RUNS, "100 * (ma - mb) / mb", "100 * (ma - mb) / ma"),
    ("children outlive a signal", "quality", RUNS, "signal.signal(signal.SIGTERM, on_signal)", "pass"),
]


def run(test, planted):
    return ["make", "-s", "PRECISION=fp32", "train_gpt"], ["dev/test/system/test_caat_quality.py"]
