#!/usr/bin/env python3
"""
scripts/report.py against what it promises: lines that are none are counted and no more; a thinned curve keeps every
extreme; ticks are round and stand where their values are; the page needs nothing from elsewhere, and no text in it
becomes a part of it. Then a real run of ./train_gpt. The last line is "N passed, N failed".
"""
import html.parser, json, math, os, random, re, subprocess, sys, tempfile

from checks import check, finish

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..")
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(ROOT, "scripts"))
import report  # noqa: E402

TRAIN = os.path.abspath(os.environ.get("TRAIN", os.path.join(ROOT, "train_gpt")))
EVIL = "</pre><script>alert(1)</script><!-- & \" '"


def run(*arguments):
    return subprocess.run([sys.executable, os.path.join(ROOT, "scripts", "report.py"), *arguments],
                          capture_output=True, text=True, timeout=600)


def write(folder, **files):
    os.makedirs(folder, exist_ok=True)
    for name, text in files.items():
        with open(os.path.join(folder, name.replace("_", ".", 1)), "wb") as f:
            f.write(text if isinstance(text, bytes) else text.encode())
    return folder


def log_of(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def read(*path):
    with open(os.path.join(*path), encoding="utf-8") as f:
        return f.read()


def test_lines(work):
    good = [b'{"step":1,"loss":2.5}', b'{"step":2,"loss":null}', b' {"step":3,"loss":"4","lr":true,"mfu":1e300} ']
    bad = [b'{"step":6,"loss":2.', b"[1]", b"7", b"null", b'{"loss":2}', b'{"step":true}', b'{"step":"8"}',
           b'{"step":NaN}', b'{"step":1e300}', b"\xff\xfe{", b'{"step":9}{"step":10}', b"\0\0\0\0", b"[" * 100000]
    mixed = bad + [line for pair in zip(good, bad) for line in pair] + [b"", b"   "]
    one = report.read_run(write(os.path.join(work, "lines"), log_jsonl=b"\n".join(mixed) + b'\n{"step":11,"lo'))
    check([row["step"] for row in one["rows"]] == [1, 2, 3] and one["broken"] == len(bad) + len(good) + 1,
          "good lines among broken ones are read; broken ones are counted, empty ones are not")
    check(report.values(one, "loss") == [(1, 2.5), (2, None), (3, None)] and
          [v for _, v in report.values(one, "lr") + report.values(one, "mfu")] == [None] * 6,
          "what is no number, or too large a one, is missing")
    steps = [1, 2, 3, 4, 3, 4, 5, 2, 3]
    one = report.read_run(write(os.path.join(work, "twice"),
                                log_jsonl=log_of({"step": s, "at": i} for i, s in enumerate(steps))))
    check([(row["step"], row["at"]) for row in one["rows"]] == [(1, 0), (2, 7), (3, 8)],
          "what a resumed run wrote again replaces what it wrote before")


def test_samples():
    printed = "model x\nstep 5/9 | loss 1\nsample:\n\na\nb\n\nstep 6/9 | loss 1\nsaved x\nsample:\nc\nsaved y\nd\n"
    check(report.read_samples(printed) == [(5, "a\nb"), (6, "c")], "samples end where the trainer speaks again")
    many = report.read_samples("".join(f"step {i}/99 | loss 1\nsample:\n{i}\n" for i in range(1, 30)))
    check(len(many) <= report.MOST_SAMPLES and many[-1] == (29, "29"), "of many some are shown, and the last")
    numbers = {0: "0", 0.00025: "0.00025", -3.5: "-3.5", 9999: "9999", 12345: "12.3 k", 1e6: "1 M", 2.5e9: "2.5 G",
               -7e13: "-70 T", 1e4: "10 k"}
    check([report.readable(x) for x in numbers] == list(numbers.values()), "numbers as people read them")


def test_thinning():
    draw = random.Random(1)
    for n in (0, 1, 500, 501, 777, 100000):
        curve = [(i, draw.gauss(0, 1) if draw.random() > 0.3 else None) for i in range(n)]
        short, numbers = report.thinned(curve), [p for p in curve if p[1] is not None]
        check(len(short) <= 2 * report.MOST_PLACES and short == sorted(set(short) & set(curve)) and
              {min(numbers, key=lambda p: p[1]), max(numbers, key=lambda p: p[1])} <= set(short) if numbers else True,
              f"{n} steps as {len(short)} points, in order, with both extremes")
        steps = [-1] + [step for step, _ in short] + [n]
        check(max(b - a for a, b in zip(steps, steps[1:])) <= 2 * math.ceil(n / report.MOST_PLACES) + 1, "everywhere")


def test_ticks():
    draw, wrong = random.Random(2), []
    for _ in range(2000):
        low = draw.choice([-1, 0, 1]) * 10 ** draw.uniform(-9, 9)
        high = low + max(abs(low) * 1e-3, 10 ** draw.uniform(-9, 9))
        found = report.ticks(low, high)
        gap = found[1] - found[0] if len(found) > 1 else 0
        mantissa = gap / 10 ** math.floor(math.log10(gap) + 1e-9) if gap else 0
        if not (2 <= len(found) <= 8 and min(abs(mantissa - x) for x in (1, 2, 5)) < 1e-3 and
                low - 1e-9 * gap <= found[0] and found[-1] <= high + 1e-9 * gap):
            wrong.append((low, high, found))
    check(not wrong, f"ticks are two to eight round numbers within the axis {wrong[:1]}")


def path_of(svg):
    line = re.findall(r'd="([^"]*)" fill', svg)[0]
    return [(float(x), float(y)) for x, y in re.findall(r"[ML]([\d.]+) ([\d.]+)", line)]


def test_plot():
    svg = report.plot("a & b", [[(step, float(step)) for step in range(0, 101)]], [[]], False)
    points = path_of(svg)
    horizontal = {float(text): float(y) - 4 for y, text in re.findall(r'y="([\d.]+)" text-anchor="end">([\d.]+)<', svg)}
    vertical = {float(text): float(x)
                for x, text in re.findall(r'<text x="([\d.]+)" y="\d+" text-anchor="middle">(\d+)<', svg)}
    check(len(horizontal) >= 4 and all(abs(points[int(v)][1] - y) < 0.11 for v, y in horizontal.items()) and
          len(vertical) >= 4 and all(abs(points[int(v)][0] - x) < 0.11 for v, x in vertical.items()),
          "ticks stand where their values are drawn")
    check(points[0][0] == 56 and abs(points[-1][0] - 552) < 0.1 and 26 < points[-1][1] < points[0][1] < 218 and
          "a &amp; b" in svg, "the curve fills its axes, upwards is more")
    gap = report.plot("", [[(1, 1.0), (2, None), (3, 2.0), (4, 3.0)]], [[(2, 5.0)]], True)
    check(re.findall(r"[ML]", re.findall(r'd="([^"]*)" fill', gap)[0]) == ["M", "M", "L"] and gap.count("<circle") == 1,
          "a value that is no number interrupts the line; validation is points")
    check(report.plot("", [[(1, None)]], [[]], True) == "", "no numbers, no plot")
    flat = "".join(report.plot("", [[(s, v) for s in steps]], [], z) for steps in ((1,), (1, 2), (0, 10 ** 15))
                   for v in (0, 1, -1, 1e-300, 1e37, -1e37) for z in (True, False))
    flat = re.sub(r'>-?[\d.e+-]+ ?[kMGT]?<|text-anchor|font-weight|stroke-width', "", flat)
    check(not re.search(r"nan|inf|-\d", flat), "a curve of one value, however large, is drawn inside the picture")


class Page(html.parser.HTMLParser):
    """The tags of a page, and its first text in <pre>."""
    def __init__(self, text):
        super().__init__()
        self.tags, self.sample = [], None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)

    def handle_data(self, data):
        if self.tags and self.tags[-1] == "pre":
            self.sample = self.sample or data


def test_page(work):
    options = f"# --lr 0.1\n--steps 3\n--data {EVIL}\n# about: x\n--tie-embeddings\n"
    a = write(os.path.join(work, "a" + EVIL.replace("/", "")), options_txt=options,
              log_jsonl=log_of({"step": i, "loss": 4 - i, "skipped": i == 2, "tokens": 10} for i in (1, 2, 3)) + EVIL,
              stdout_txt=f"step 2/3 | x\nsample:\n{EVIL}\n")
    b = write(os.path.join(work, "b"), options_txt="--lr 0.1\n--steps 3\n", log_jsonl=log_of([{"step": 1, "loss": 1}]))
    out = os.path.join(work, "both.html")
    made = run(a, os.path.join(b, "log.jsonl"), "-o", out)
    check(made.returncode == 0 and not os.path.exists(out + ".tmp"), "two runs")
    text = read(out)
    page = Page(text)
    check(set(page.tags) <= set("meta title style h1 table tr th td span p div svg path text h2 pre".split()) and
          "<!--" not in text and not re.search("https?:|@import|url\\(", text), "nothing else is in it, or asked for")
    check(page.sample == EVIL, "a sample is what it was")
    rows = [re.findall("<t[dh]>(.*?)</t[dh]>", line) for line in text.split("\n") if line.startswith("<tr")]
    differs = [re.findall("<td>(.*?)</td>", line) for line in text.split("\n") if line.startswith("<tr class=differs")]
    check(["--steps", "3", "3"] in rows and [x[0] for x in differs] == ["--lr", "--data", "--tie-embeddings"] and
          differs[0][1:] == ["0.1 (default)", "0.1"] and differs[2][1:] == ["yes", "-"], "options, and which differ")
    check(text.count("warning") == 3, "warnings")
    check([row[1:6] for row in rows[1:3]] == [["3", "1.0000", "-", "-", "30"], ["1", "1.0000", "-", "-", "-"]],
          "figures")


def test_refusals(work):
    empty = write(os.path.join(work, "c"), log_jsonl="")
    nowhere = os.path.join(work, "none", "x.html")
    for arguments, word in ((["nowhere"], "nowhere"), ([work], "log.jsonl"), ([empty, "-o", nowhere], nowhere)):
        made = run(*arguments)
        check(made.returncode == 1 and word in made.stderr and "Traceback" not in made.stderr, made.stderr.strip())
    check(run(empty).returncode == 0, "a run without steps is a page")


def test_run(work):
    if not os.path.exists(TRAIN):
        print(f"left out: there is no {TRAIN}")
        return
    text = " ".join(map(str, range(20000)))
    out = os.path.join(write(os.path.join(work, "data"), text_txt=text), "run")
    options = "--layers 1 --hidden 32 --heads 2 --seq 32 --steps 20 --eval-every 5 --sample-every 10 --micro-batch 2"
    made = subprocess.run([TRAIN, *options.split(), "--data", os.path.join(work, "data", "text.txt"), "--out", out],
                          capture_output=True, text=True, timeout=600, stdin=subprocess.DEVNULL)
    check(made.returncode == 0, f"a run of the trainer {made.stderr[-300:]}")
    write(out, stdout_txt=made.stdout)
    check(run(out).returncode == 0, "is a page")
    page = read(out, "report.html")
    losses = [json.loads(line)["loss"] for line in read(out, "log.jsonl").splitlines()]
    loss = page[page.index("<svg"):page.index("</svg>")]
    heights = [y for _, y in path_of(loss)]
    check(len(heights) == 20 and loss.count("<circle") == 4 and
          all((heights[i] - heights[j]) * (losses[i] - losses[j]) <= 1e-9 + 0.2 * abs(losses[i] - losses[j])
              for i in range(20) for j in range(i)), "with its losses")
    check(page.count("<svg") == 5, "and four other plots")
    check(re.findall(r", step (\d+)</h2>", page) == ["10", "20"], "what it wrote")
    check("<td>--steps</td><td>20</td>" in page and "<td>--lr</td><td>0.003 (default)</td>" in page, "its options")


def main():
    with tempfile.TemporaryDirectory() as work:
        for test in test_samples, test_thinning, test_ticks, test_plot:
            test()
        for test in test_lines, test_page, test_refusals, test_run:
            test(work)
    finish()


if __name__ == "__main__":
    main()
