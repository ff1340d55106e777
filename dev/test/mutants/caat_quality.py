"""Faults of how losses are compared by experiments, and of what these share. Test: test_caat_quality.py."""
QUALITY, TUNED, RUNS = (f"dev/experiments/{name}.py" for name in ("caat_quality", "tuned", "runs"))

# What is wrong; the test that has to see it; file, exact text, replacement.
FAULTS = [
    ("the sweep ends at its edge", "quality", TUNED, "    if best == max(losses):\n        return best * 2\n", ""),
    ("the lowest rate is the best", "quality", TUNED, "return best / 2 if best == min(losses) else None",
     "return None"),
    ("the worst rate", "quality", TUNED, "return min(losses, key=losses.get) if losses", "return max(losses) if 0"),
    ("every P = 1 is the same", "quality", QUALITY, "apart <= same", "apart >= 0"),
    ("better where it is worse", "quality", QUALITY, "if got.sign < 0]", "if got.sign > 0]"),
    ("a text without headers", "quality", TUNED, "('.c', '.h', '.rst', '.txt')", "('.c', '.rst', '.txt')"),
    ("a text of all files", "quality", TUNED, "if name.endswith(('.c', '.h', '.rst', '.txt'))", "if name"),
    ("a text that is too long", "quality", TUNED, "f.read(left)", "f.read()"),
    ("one seed more for nothing", "quality", TUNED, "'confirmed': h, 'why'", "'confirmed': None, 'why'"),
    ("a folder of other settings is continued", "quality", TUNED, "    if different:", "    if False:"),
    ("an interrupted run is lost with its options", "quality", TUNED, "!= self.options:", "== self.options:"),
    ("complete runs are repeated", "quality", TUNED, "and not runs.is_complete(t.folder, t.options)]", "]"),
    ("recorded runs are repeated", "quality", TUNED, ".get('options') != t.recorded", ".get('options') != 0"),
    ("a record is of any options", "quality", TUNED, ".get('options') != t.recorded", ".get('options') is None"),
    ("short runs are long", "quality", TUNED, "o.steps // SWEEP_PART if o.short", "o.steps if o.short"),
    ("short runs are in the place of long ones", "quality", TUNED, "('short/' if o.short else '')", "''"),
    ("the spread is a variance", "quality", RUNS, "math.sqrt((sa * sa + sb * sb) / 2)", "(sa * sa + sb * sb) / 2"),
    ("half the rule", "quality", RUNS, "<= 2 * spread", "<= spread"),
    ("percent of the other", "quality", RUNS, "100 * (ma - mb) / mb", "100 * (ma - mb) / ma"),
    ("children outlive a signal", "quality", RUNS, "signal.signal(signal.SIGTERM, on_signal)", "pass"),
]


def run(_test, _planted):
    return ["make", "-s", "PRECISION=fp32", "train_gpt"], ["dev/test/system/test_caat_quality.py"]
