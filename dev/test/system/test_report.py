#!/usr/bin/env python3
"""
scripts/report.py against what it promises: lines that are none are counted and no more; a thinned curve keeps every
extreme; ticks are round and stand where their values are; the page needs nothing from elsewhere, and no text in it
becomes a part of it. Then a real run of ./train_gpt. The last line is "N passed, N failed".
"""
import html, json, math, os, random, re, sys, tempfile

from checks import ROOT, TRAIN, check, finish, launch, read
import report

EVIL = "</pre><script>alert(1)</script><!-- & \" '"


def run(*arguments):
    return launch(sys.executable, f"{ROOT}/scripts/report.py", *arguments)


def write(folder, **files):
    os.makedirs(folder, exist_ok=True)
    for name, text in files.items():
        with open(os.path.join(folder, name.replace("_", ".", 1)), "wb") as f:
            f.write(text if isinstance(text, bytes) else text.encode())
    return folder


def log_of(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_lines(work):
    good = [b'{"step":1,"loss":2.5}', b'{"step":2,"loss":null}', b' {"step":3,"loss":"4","lr":true,"mfu":1e300} ']
    bad = [b'{"step":6,"loss":2.', b"[1]", b"7", b"null", b'{"loss":2}', b'{"step":true}', b'{"step":"8"}',
           b'{"step":NaN}', b'{"step":1e300}', b"\xff\xfe{", b'{"step":9}{"step":10}', b"\0\0\0\0", b"[" * 100000]
    mixed = bad + [line for pair in zip(good, bad) for line in pair] + [b"", b"   "]
    one = report.read_run(write(f"{work}/lines", log_jsonl=b"\n".join(mixed) + b'\n{"step":11,"lo'))
    check([row["step"] for row in one["rows"]] == [1, 2, 3] and one["broken"] == len(bad) + len(good) + 1,
          "good lines among broken ones are read; broken ones are counted, empty ones are not")
    check(report.values(one, "loss") == [(1, 2.5), (2, None), (3, None)] and
          [v for _, v in report.values(one, "lr") + report.values(one, "mfu")] == [None] * 6,
          "what is no number, or too large a one, is missing")
    twice = log_of({"step": step, "at": i} for i, step in enumerate([1, 2, 3, 4, 3, 4, 5, 2, 3]))
    one = report.read_run(write(f"{work}/twice", log_jsonl=twice))
    check([(row["step"], row["at"]) for row in one["rows"]] == [(1, 0), (2, 7), (3, 8)],
          "what a resumed run wrote again replaces what it wrote before")


def test_texts():
    printed = "model x\nstep 5/9 | loss 1\nsample:\n\na\nb\n\nstep 6/9 | loss 1\nsaved x\nsample:\nc\nsaved y\nd\n"
    check(report.read_samples(printed) == [(5, "a\nb"), (6, "c")], "samples end where the trainer speaks again")
    many = report.read_samples("".join(f"step {i}/99 | loss 1\nsample:\n{i}\n" for i in range(1, 30)))
    check(len(many) <= report.MOST_SAMPLES and many[-1] == (29, "29"), "of many some are shown, and the last")
    numbers = {0: "0", 0.00025: "0.00025", -3.5: "-3.5", 9999: "9999", 12345: "12.3 k", -7e13: "-70 T"}
    check([report.readable(x) for x in numbers] == list(numbers.values()), "numbers as people read them")
    check(report.ticks(-30, 6) == [-30, -20, -10, 0] and report.ticks(1e6, 1.1e7) == [2e6, 4e6, 6e6, 8e6, 1e7],
          "round ticks in their axis")


def test_thinning():
    draw = random.Random(1)
    for n in (0, 1, 500, 501, 777, 100000):
        curve = [(i, draw.gauss(0, 1) if draw.random() > 0.3 else None) for i in range(n)]
        short, numbers = report.thinned(curve), sorted((p for p in curve if p[1] is not None), key=lambda p: p[1])
        steps = [-1, *(step for step, _ in short), n]
        check(len(short) <= 2 * report.MOST_PLACES and short == sorted(set(short) & set(curve)) and
              {*numbers[:1], *numbers[-1:]} <= set(short) and
              max(b - a for a, b in zip(steps, steps[1:])) <= 2 * math.ceil(n / report.MOST_PLACES) + 1,
              f"{n} steps as {len(short)} points everywhere, in order, with both extremes")


def path_of(svg):
    """[(M or L, x, y)] of the first curve"""
    line = re.search(r'd="([^"]*)" fill', svg)[1]
    return [(pen, float(x), float(y)) for pen, x, y in re.findall(r"([ML])([\d.]+) ([\d.]+)", line)]


def test_plot():
    svg = report.plot("", [[(step, float(step)) for step in range(0, 101)]], [[]], False)
    points = path_of(svg)
    heights = [(int(v), float(y) - 4) for y, v in re.findall(r'y="([\d.]+)" text-anchor="end">(\d+)<', svg)]
    widths = [(int(v), float(x)) for x, v in re.findall(r'<text x="([\d.]+)" y="\d+" text-anchor="middle">(\d+)<', svg)]
    check(min(len(heights), len(widths)) >= 4 and all(abs(points[v][2] - y) < 0.11 for v, y in heights) and
          all(abs(points[v][1] - x) < 0.11 for v, x in widths) and points[0][1] == 56 and
          abs(points[-1][1] - 552) < 0.1 and 26 < points[-1][2] < points[0][2] < 218,
          "a curve fills its axes, upwards is more; ticks stand where their values are drawn")
    gap = report.plot("", [[(1, 1.0), (2, None), (3, 2.0), (4, 3.0)]], [[(2, 5.0)]], True)
    check([pen for pen, _, _ in path_of(gap)] == ["M", "M", "L"] and gap.count("<circle") == 1 and
          report.plot("", [[(1, None)]], [[]], True) == "",
          "a value that is no number interrupts the line; validation is points; without numbers no plot")
    flat = [path_of(report.plot("", [[(step, v) for step in (0, end)]], [], z)) for end in (0, 10 ** 15)
            for v in (0, 1e-300, -1e37) for z in (True, False)]
    check(all(len(path) == 2 and 26 <= y <= 218 for path in flat for _, _, y in path),
          "a curve of one value, however large, is drawn inside the picture")


def test_page(work):
    options = f"# --lr 0.1\n--steps 3\n--data {EVIL}\n# about: x\n--tie-embeddings\n"
    a = write(f"{work}/a{EVIL.replace('/', '')}", options_txt=options,
              log_jsonl=log_of({"step": i, "loss": 4 - i, "skipped": i == 2, "tokens": 10} for i in (1, 2, 3)) + EVIL,
              stdout_txt=f"step 2/3 | x\nsample:\n{EVIL}\n")
    b = write(f"{work}/b", options_txt="--lr 0.1\n--steps 3\n", log_jsonl=log_of([{"step": 1, "loss": 1}]))
    made, page = run(a, f"{b}/log.jsonl", "-o", f"{work}/both.html"), read(f"{work}/both.html")
    tags = set("meta title style h1 table tr th td span p div svg path text h2 pre".split())
    check(made.returncode == 0 and set(re.findall(r"<(\w+)", page)) <= tags and
          not re.search("<!--|https?:|@import|url\\(", page) and
          html.unescape(re.search("(?s)<pre>(.*?)</pre>", page)[1]) == EVIL,
          f"nothing else is in it, or asked for; a sample is what it was {made.stderr}")
    rows = [re.findall("<t[dh]>(.*?)</t[dh]>", line) for line in page.split("\n") if line.startswith("<tr")]
    differs = [re.findall("<td>(.*?)</td>", line) for line in page.split("\n") if line.startswith("<tr class=differs")]
    check(["--steps", "3", "3"] in rows and [x[0] for x in differs] == ["--lr", "--data", "--tie-embeddings"] and
          differs[0][1:] == ["0.1 (default)", "0.1"] and differs[2][1:] == ["yes", "-"], "options, and which differ")
    check([row[1:6] for row in rows[1:3]] == [["3", "1.0000", "-", "-", "30"], ["1", "1.0000", "-", "-", "-"]] and
          page.count("warning") == 3, "figures, and warnings")
    for status, *arguments in (1, "nowhere"), (1, b, "-o", f"{work}/none/x"), (0, write(f"{work}/c", log_jsonl="")):
        made = run(*arguments)
        check(made.returncode == status and "Traceback" not in made.stderr, f"status {status}: {made.stderr.strip()}")


def test_run(work):
    write(work, text_txt=" ".join(map(str, range(20000))))
    options = "--layers 1 --hidden 32 --heads 2 --seq 32 --steps 20 --eval-every 5 --sample-every 10 --micro-batch 2"
    made = launch(TRAIN, *options.split(), "--data", f"{work}/text.txt", "--out", f"{work}/run")
    run(write(f"{work}/run", stdout_txt=made.stdout))
    page = read(f"{work}/run/report.html")
    first = page.partition("</svg>")[0]
    check(len(path_of(first)) == 20 and first.count("<circle") == 4 and page.count("<svg") == 5 and
          re.findall(r", step (\d+)</h2>", page) == ["10", "20"] and "<td>0.003 (default)</td>" in page,
          "a run of the trainer: its losses, four other plots, what it wrote, and its options")


def main():
    for test in test_texts, test_thinning, test_plot:
        test()
    with tempfile.TemporaryDirectory() as work:
        for test in test_lines, test_page, test_run:
            test(work)
    finish()


main()
