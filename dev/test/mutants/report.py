#!/usr/bin/env python3
"""
report.py: are the tests of the page, the event files and the options able to fail? Plants faults in copies of
scripts/report.py, report.html, tfevents.py and util/options.h, one at a time, and runs the part of test_report.py, or test_options,
that has to see it.

    python3 dev/test/mutants/report.py [WORD]      only the faults whose description contains WORD

One line a fault: "caught" with the failing line of the test, or "MISSED". Last line "N passed, N failed": N faults were
caught, N missed. Standard library only; the script's faults need node.
"""
import os
import subprocess
import sys
import tempfile

from mutate import copy_sources, mutated, verdict

REPORT, PAGE, EVENTS, OPTIONS = "scripts/report.py", "scripts/report.html", "scripts/tfevents.py", "util/options.h"
SETTINGS = "trainer/settings.h"

# What is wrong; the test that has to see it; file, exact text, replacement.
FAULTS = [
    ("a broken line ends the reading", "lines", REPORT, "                broken += 1\n", "                break\n"),
    ("empty lines count as broken", "lines", REPORT, "            if not line.strip():\n                continue\n", ""),
    ("C's nan is no number", "lines", REPORT, 'if "nan" in text or "inf" in text:', 'if "inf" in text:'),
    ("minus infinity loses its sign", "lines", REPORT, r'r"([:\[,]\s*-?)inf\b"', r'r"([:\[,]\s*)-?inf\b"'),
    ("true is a step", "lines", REPORT, "and not isinstance(x, bool) and", "and"),
    ("a step that is not finite", "lines", REPORT, 'is_number(one.get("step")) and 0 <=', '0 <='),
    ("what was written twice stays twice", "lines", REPORT, 'kept[-1]["step"] >= one["step"]', 'kept[-1]["step"] > one["step"]'),
    ("bytes that are no object", "lines", REPORT, 'if isinstance(groups, dict) else ()', 'if groups else ()'),
    ("a skipped step is an outlier", "lines", REPORT, 'line.get("skipped") is True', 'line.get("skipped") == 2'),
    ("a score's sign", "lines", REPORT, "if z > 0 else", "if z < 0 else"),
    ("defaults are taken for given", "options", REPORT, "(implied if option.group(1) else given)", "(given if option.group(1) else given)"),
    ("the start is local time", "options", REPORT, '"%Y-%m-%d %H:%M:%S")) - time.timezone', '"%Y-%m-%d %H:%M:%S")) - time.timezone - 3600'),
    ("a heading is a fact of the run", "options", REPORT, "elif fact and not given and not implied:", "elif fact:"),
    ("numbers without end", "damage", REPORT, "-LARGEST < x < LARGEST", "(isinstance(x, int) or math.isfinite(x))"),
    ("a checkpoint's numbers are not looked at", "damage", REPORT, "facts_of(json.load(f))", "json.load(f)"),
    ("a sample goes on over a saved checkpoint", "options", REPORT, "(done|saved|skipped", "(done|skipped"),
    ("a terminal's codes stay", "options", REPORT, r'''re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", f.read())''', "f.read()"),
    ("the last row is in no bucket", "thinning", REPORT, "for i in range(LINEAR_BUCKETS + 1)}", "for i in range(LINEAR_BUCKETS)}"),
    ("no buckets that grow", "thinning", REPORT, "return sorted(linear | growing)", "return sorted(linear)"),
    ("only buckets that grow", "thinning", REPORT, "return sorted(linear | growing)", "return sorted(growing | {n})"),
    ("a bucket's least is its first", "thinning", REPORT, "significant(min(values))", "significant(values[0])"),
    ("a bucket's greatest is its mean", "thinning", REPORT, "significant(max(values))", "significant(sum(values) / len(values))"),
    ("a mean over missing values", "thinning", REPORT, "math.fsum(values) / len(values)", "math.fsum(values) / (end - begin)"),
    ("steps at the begin of a bucket", "thinning", REPORT, "last = rows[end - 1]", "last = rows[begin]"),
    ("tokens are not added up", "thinning", REPORT, 'tokens += row["tokens"] or 0', 'tokens = row["tokens"] or 0'),
    ("a range is always left away", "thinning", REPORT, 'if curve["low"] == curve["high"]:', "if True:"),
    ("the worst is the best", "thinning", REPORT, 'best = min(validated', 'best = max(validated'),
    ("the median of an even number", "thinning", REPORT, "values[len(values) // 2]) / 2 if", "values[len(values) // 2]) / 3 if"),
    ("the last sample is left out", "thinning", REPORT, "(len(samples) - 1) // (MOST_SAMPLES - 1)", "len(samples) // (MOST_SAMPLES + 1)"),
    ("a track's second thread is another", "traces", REPORT, r're.sub(r" \d+$", "", names.get(("thread_name"', r're.sub(r" \d+x$", "", names.get(("thread_name"'),
    ("waits count twice", "traces", REPORT, "for a, b in mine) - waited", "for a, b in mine)"),
    ("waits that overlap are added", "traces", REPORT, "if out and begin <= out[-1][1]:", "if False:"),
    ("the second half of a pass is another kind", "traces", REPORT, '"backward weight half": "weight"', '"backward weight half": "backward"'),
    ("the overlap goes on with the wrong list", "traces", REPORT, "if a[i][1] < b[j][1]:", "if a[i][1] > b[j][1]:"),
    ("the shortest step is seen first", "traces", REPORT, "middle = by_length[len(by_length) // 2]", "middle = by_length[0]"),
    ("a large trace is not cut", "traces", REPORT, "if total > MOST_SPANS:", "if False:"),
    ("spans begin elsewhere", "traces", REPORT, "round(a - begin, 1), round(b - a, 1)] for t, n, a, b in spans", "round(a, 1), round(b - a, 1)] for t, n, a, b in spans"),
    ("a sample can end the script", "page", REPORT, '.replace("<", "\\\\u003c")', ""),
    ("the title is HTML", "page", REPORT, 'title = title.replace(char, name)', "pass"),
    ("runs of one name stay so", "page", REPORT, 'if names.count(run["name"]) > 1:', "if False:"),
    ("half a page", "page", REPORT, 'temporary = f"{path}.tmp{os.getpid()}"', 'temporary = f"{path}.tmp{os.getpid()}"; open(temporary + "x", "w").close()'),
    ("a page from elsewhere", "page", PAGE, "<title><!--", '<link rel="stylesheet" href="https://example.org/a.css"><title><!--'),
    ("curves are not thinned", "page", REPORT, "if n <= LINEAR_BUCKETS + GROWING_BUCKETS:", "if True:"),
    ("marks without end", "page", REPORT, "if counts[kind] <= MOST_MARKS:", "if True:"),
    ("a watched page stays", "watch", REPORT, "write(o, runs, o.watch)", "write(o, runs, 0)"),
    ("a watch without end", "watch", REPORT, "while not all(is_done(run) for run in runs):", "while True:"),
    ("the last page reloads", "watch", REPORT, "write(o, runs, 0)  #", "write(o, runs, 5)  #"),
    ("smoothing looks back only", "script", PAGE, "out[i] = y[i] === null ? null : (sum + ahead[i][0]) / (weight + ahead[i][1]);", "out[i] = y[i] === null ? null : sum / weight;"),
    ("smoothing counts a value twice", "script", PAGE, "    ahead[i] = [sum, weight];\n    if (y[i] !== null) sum += n[i] * y[i], weight += n[i];", "    if (y[i] !== null) sum += n[i] * y[i], weight += n[i];\n    ahead[i] = [sum, weight];"),
    ("smoothing forgets how many", "script", PAGE, "    if (y[i] !== null) sum += n[i] * y[i], weight += n[i];\n    out[i]", "    if (y[i] !== null) sum += y[i], weight += 1;\n    out[i]"),
    ("ticks beyond the axis", "script", PAGE, "i * step <= high + step * 1e-9", "(i - 1) * step <= high + step * 1e-9"),
    ("too many logarithmic ticks", "script", PAGE, "decades * 2 > count ? [1]", "decades > 99 ? [1]"),
    ("the nearest is the one before", "script", PAGE, "Math.abs(list[a] - x) <= Math.abs(list[b] - x) ? a : b", "list[b] <= x ? b : a"),
    ("a logarithmic axis is not", "script", PAGE, "const f = log ? v => v > 0 ? Math.log(v) : NaN : v => v, a", "const f = v => v, a"),
    ("a gap is drawn over", "script", PAGE, '{ pen = "M"; continue; }', "continue;"),
    ("an area over a gap", "script", PAGE, "while (j + 1 < xs.length && good(j + 1)) j++;", "while (j + 1 < xs.length) j++;"),
    ("a kilobyte too early", "script", PAGE, "while (v >= 999.5 &&", "while (v >= 1024 &&"),
    ("the wrong polynomial", "tensorboard", EVENTS, "0x82F63B78", "0xEDB88320"),
    ("the CRC is not masked", "tensorboard", EVENTS, "+ 0xA282EAD8", "+ 0"),
    ("the CRC turns left", "tensorboard", EVENTS, "crc >> 15 | crc << 17", "crc >> 17 | crc << 15"),
    ("a length is not checked", "tensorboard", EVENTS, 'struct.pack("<I", masked(crc32c(length)))', 'struct.pack("<I", 0)'),
    ("varints lose a bit", "tensorboard", EVENTS, "while n > 127:", "while n > 255:"),
    ("a double for a float", "tensorboard", EVENTS, 'struct.pack("<Bf", 2 << 3 | 5, number)', 'struct.pack("<Bd", 2 << 3 | 1, number)'),
    ("no version", "tensorboard", EVENTS, 'field(3, "brain.Event:2")', 'field(3, "brain.Event:1")'),
    ("the step is in another field", "tensorboard", EVENTS, "varint(2 << 3) + varint(step)", "varint(4 << 3) + varint(step)"),
    ("a text of another plugin", "tensorboard", EVENTS, 'field(1, field(1, "text"))', 'field(1, field(2, "text"))'),
    ("a file that grows is replaced", "tensorboard", REPORT, "if old and data.startswith(old):", "if False:"),
    ("a file that shrank is appended to", "tensorboard", REPORT, "if old and data.startswith(old):", "if old:"),
    ("bytes, not megabytes", "tensorboard", REPORT, '("peak_bytes", "memory/peak MB", 1e-6)', '("peak_bytes", "memory/peak MB", 1)'),
    ("options: the file wins", "test_options", OPTIONS, "if (!o->given) return option_take(o, value ? value : rest, error);", "return option_take(o, value ? value : rest, error);"),
    ("options: what the command line gives is not looked at in the file", "test_options", OPTIONS, "return option_take(&read, value ? value : rest, error);", "return true;"),
    ("options: twice in a file", "test_options", OPTIONS, "if (o->line) return fail", "if (0) return fail"),
    ("options: a command in a file", "test_options", OPTIONS, "if (o->command) return fail", "if (0) return fail"),
    ("options: lines from 0", "test_options", OPTIONS, "for (int line = 1; text; line++)", "for (int line = 0; text; line++)"),
    ("options: a carriage return is part of a value", "test_options", OPTIONS, 'strchr(" \\t\\r", text[n - 1])', 'strchr(" \\t", text[n - 1])'),
    ("options: six digits of a number", "test_options", OPTIONS, 'if (strtod(text, NULL) != *(double*)o->value) snprintf(text, size, "%.17g", *(double*)o->value);', ""),
    ("options: a value with a line break is written", "test_options", OPTIONS, 'strpbrk(string, "\\n\\r")', "0"),
    ("options: blanks at the end are written", "test_options", OPTIONS, 'strchr(" \\t", string[strlen(string) - 1])', "0"),
    ("options: defaults are written as given", "test_options", OPTIONS, 'o->given ? "" : "# "', '""'),
    ("options: what is given is a comment", "test_options", OPTIONS, 'o->given ? "" : "# "', '"# "'),
    ("options: --help takes the next option for its word", "test_options", OPTIONS, '(o->type != OPTION_WORD || strncmp(argv[i + 1], "--", 2) != 0)', "true"),
    ("options: fractions are cut off", "test_options", OPTIONS, "value != floor(value)", "false"),
    ("options: k is ten", "test_options", OPTIONS, "3 * (int)(suffix - suffixes + 1)", "(int)(suffix - suffixes + 1)"),
    ("rates: a finished model learns as fast as a new one", "test_options", SETTINGS, "o->init ? to_digits(usual / 10, 2) : usual", "usual"),
    ("rates: warm-up without end", "test_options", SETTINGS, "min_i64(2000, o->steps / 20)", "o->steps / 20"),
    ("rates: the wrong row of the table", "test_options", SETTINGS, "parameters < table[i + 1].parameters", "parameters < table[i].parameters"),
    ("aliases: underscores are no hyphens", "test_options", "util/option_aliases.h", "word[same] == '_' ? '-' : word[same]", "word[same]"),
    ("aliases: of what is not there", "test_options", OPTIONS, "if (alias && option_find(table, n, alias->here))", "if (alias && alias->here)"),
    ("options: the shell's files are not seen", "test_options", OPTIONS, "access(argv[i], F_OK) == 0", "false"),
    ("help: lines without end", "test_options", OPTIONS, "if (!first && column + 1 + (int)n > HELP_WIDTH)", "if (0)"),
    ("help: no option alone", "test_options", OPTIONS, "    return option_find(table, n, word) ? 1 : kind;", "    return kind;"),
    ("help: what is unset has a default", "test_options", OPTIONS, "if ((double)*(int64_t*)o->value >= o->low) snprintf", "snprintf"),
    ("completion: a quote ends zsh's text", "test_options", OPTIONS, '''put_quoted(out, o->help, "[]\\\\", "'\\\\''");''', '''fputs(o->help, out);'''),
    ("completion: folders are files", "test_options", OPTIONS, 'return strcmp(o->choices, "DIR") == 0 ? "/" : "";', 'return "";'),
    ("completion: choices with bars", "test_options", OPTIONS, "if (*c == '|') *c = ' ';", ""),
    ("completion: headings are options", "test_options", OPTIONS, "if (table[i].type != OPTION_HEADING) fprintf(out, \"--%s \", table[i].name);", "fprintf(out, \"--%s \", table[i].name);"),
]


def seen(folder, test):
    """What the test had to say, in one line; None if it saw nothing."""
    if test.startswith("test_"):
        return verdict(folder, test)
    try:
        run = subprocess.run([sys.executable, "dev/test/system/test_report.py", test], cwd=folder, capture_output=True, text=True, timeout=120,
                             env=dict(os.environ, TMPDIR=folder))
    except subprocess.TimeoutExpired:
        return "hangs"
    if run.returncode == 0:
        return None
    lines = (run.stdout + run.stderr).splitlines() or [""]
    return next((line[4:].strip() for line in lines if line.startswith("FAIL")), lines[-1])


def main():
    faults = [fault for fault in FAULTS if len(sys.argv) < 2 or sys.argv[1] in fault[0]]
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", ".."))
    changed = [mutated(*fault[2:]) for fault in faults]
    caught = 0
    with tempfile.TemporaryDirectory() as folder:
        copy_sources(folder)
        for test in sorted({fault[1] for fault in faults}):
            line = seen(folder, test)
            if line:
                sys.exit(f"{test}: the sources as they are do not pass: {line}")
        for fault, source in zip(faults, changed):
            path = os.path.join(folder, fault[2])
            with open(path, encoding="utf-8") as f:
                right = f.read()
            with open(path, "w", encoding="utf-8") as f:
                f.write(source)
            line = seen(folder, fault[1])
            with open(path, "w", encoding="utf-8") as f:
                f.write(right)
            caught += line is not None
            print(f"caught  {fault[0]}: {line[:120]}" if line else f"MISSED  {fault[0]}", flush=True)
    print(f"{caught} passed, {len(faults) - caught} failed")
    return 0 if caught == len(faults) and faults else 1


if __name__ == "__main__":
    sys.exit(main())
