#!/usr/bin/env python3
"""
check_explain.py: ./train_gpt --explain says what is so. Usage: check_explain.py PROGRAM

For each mesh below, numbers in the sentences of --explain are compared with those computed here, from the options
alone: shares of heads, channels and vocabulary, message sizes, forward passes before the first backward pass,
bubble, buckets, shards; bytes a step and bytes held with the table of --dry-run. A paragraph is there if and only if
its option is on. The last line is "N passed, N failed".
"""
import os, re, sys

from checks import check, finish, launch, near

PROGRAM = os.path.abspath(sys.argv[1])
GPT2 = "--layers 8 --hidden 64 --heads 4 --seq 64 --vocab 256"
LLAMA = "--arch llama --layers 8 --hidden 64 --heads 8 --kv-heads 2 --seq 64 --vocab 257"
MESHES = [f"{GPT2} {mesh}" for mesh in (
    "", "--micro-batch 2 --global-batch 8", "--tp 2 --pp 2 --dp 2", "--tp 2 --sequence-parallel --recompute full",
    "--pp 4 --vpp 2 --no-scatter-gather --tp 2", "--pp 2 --schedule zb-h1 --tp 2", "--pp 2 --schedule zb-v",
    "--pp 4 --schedule gpipe --recompute full --tp 2", "--dp 2 --zero 2 --global-batch 16 --micro-batch 2",
    "--dp 4 --zero 1 --tp 2 --clip 0", "--tp 2 --caat-fraction 0.25 --caat-ranks 4 --pp 2",
    "--dp 4 --dp-mode dc-s3gd --pp 2", "--dp 4 --sites 2 --dp-mode diloco --local-steps 4", "--dp 4 --sites 2 --tp 2",
    "--dp 4 --allreduce multitree --topology torus:2x2", "--tp 2 --pp 2 --micro-batch 2 --tp-comm-overlap",
    "--caat-fraction 1 --caat-ranks 2 --pp 2", "--tp 2 --caat-fraction 0.5 --recompute full",
    "--dp 4 --allreduce 2d-ring --topology torus:2x2", "--dp 4 --dp-mode diloco --sites 1",
    "--dp 8 --sites 2 --dp-mode dc-s3gd --allreduce multitree --topology torus:2x2", "--dp 3 --global-batch 12",
    "--dp 4 --allreduce native")]
MESHES += [f"{LLAMA} {mesh}" for mesh in (
    "--tp 4 --pp 2", "--tp 4 --sequence-parallel --pp 2 --dp 2", "--pp 4 --schedule zb-v --dp 2 --zero 1",
    "--pp 8 --dp 2", "--dp 4 --dp-mode diloco --recompute selective")]
UNITS = {"bytes": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}


def start(options):
    done = launch(PROGRAM, *options.split(), "--data", __file__)
    assert done.returncode == 0, f"{options}: exit status {done.returncode}: {done.stderr}"
    return done.stdout


class Mesh:
    """What the options mean, by formulas of our own."""

    def __init__(self, options):
        words = options.split()
        value = lambda name, usual: words[words.index("--" + name) + 1] if "--" + name in words else usual
        number = lambda name, usual: int(value(name, usual))
        self.has = lambda name: "--" + name in words
        self.t, self.p, self.d = number("tp", 1), number("pp", 1), number("dp", 1)
        self.schedule = value("schedule", "interleaved" if self.has("vpp") else "1f1b")
        self.v = number("vpp", 2 if self.schedule == "zb-v" else 1)
        self.layers, self.C, self.T, self.V = (number(name, 0) for name in ("layers", "hidden", "seq", "vocab"))
        self.heads, self.llama = number("heads", 0), "llama" in words
        self.kv = number("kv-heads", self.heads)
        self.F = 192 if self.llama else 4 * self.C  # a multiple of 64 that is at least 8/3 C
        self.N = number("caat-ranks", self.t)
        self.k, self.rows = self.N // self.t, -(-self.V // self.N)
        self.replica = number("global-batch", 16) // self.d
        self.B = number("micro-batch", max(1, min(16, self.replica // (4 * self.p if self.p > 1 else 1))))
        self.m = self.replica // self.B
        self.zero, self.mode = number("zero", 0), value("dp-mode", "sync")
        self.sites = number("sites", 1 if self.mode == "sync" else self.d)
        self.full, self.fraction = value("recompute", "none") == "full", float(value("caat-fraction", 1))
        self.stream = self.B * self.T * self.C * 4  # bytes, float32

    def warm_up(self, stage):
        """Forward passes before the first backward pass."""
        behind = self.p - 1 - stage
        if self.schedule == "gpipe":
            return self.m
        if self.schedule == "interleaved":
            return min(2 * behind + (self.v - 1) * self.p + 1, self.m * self.v)
        if self.schedule == "zb-v":  # down the V with chunk 0, `stage` pairs, and chunk 1 of the first micro-batch
            return min(2 * behind + 1 + stage, self.m) + min(stage + 1, self.m)
        return min(behind + 1, self.m)

    def block_parameters(self):
        """Of a tensor rank, padded to a multiple of 16 d"""
        C, F, t = self.C, self.F, self.t
        wide = C // t + 2 * C // self.heads * max(1, self.kv // t)
        if self.llama:
            n = C * wide + C // t * C + 3 * C * F // t + 2 * C
        else:
            n = C * wide + wide + C // t * C + 2 * C * F // t + F // t + 6 * C
        return -(-n // (16 * self.d)) * 16 * self.d


def bytes_of(words):
    number, unit = words.split()
    return float(number) * UNITS[unit]


def find(pattern, text):
    found = re.search(pattern, text)
    assert found, f"no {pattern!r} in {text}"
    return found.groups()


def says(pattern, text, *numbers):
    """The text has these numbers where the pattern has #, and these bytes, in four digits, where it has SIZE."""
    pattern = pattern.replace("#", r"(\d+)").replace("SIZE", r"(\S+ \w+)")
    for found, number in zip(find(pattern, text), numbers):
        good = near(bytes_of(found), number, 1e-3) if " " in found else int(found) == number
        assert good, f"{found}, not {number}"


def there(text, words):
    """{words: whether they belong there}"""
    for word, expected in words.items():
        assert (word in text) == bool(expected), f"{word!r}: {not expected}"


def check_tensor(mesh, parts):
    k, cuts = mesh.k, mesh.N
    text = parts["tensor"] + parts.get("sequence", "") + parts.get("caat", "")
    plain = len(parts["tensor"]) == len(text)
    says("holds # of # (?:query )?heads", text, k * mesh.heads // cuts, mesh.heads)
    if mesh.llama:
        says("# of # key/value heads", text, max(1, mesh.kv // cuts), mesh.kv)
    says("# of # mlp", text, k * mesh.F // cuts, mesh.F)
    says("# of # rows of the voc", text, k * mesh.rows, cuts * mesh.rows)
    if mesh.has("caat-fraction"):
        shared = int(mesh.C * mesh.fraction)
        says("# residual streams, # on .* first # of # channels .* other #", text, mesh.N, k, shared, mesh.C,
             mesh.C - shared)
        says(r"forward 2 all-reduces of SIZE(?: \(1 more to recompute\))?, backward 2 of SIZE", text,
             mesh.stream * shared / mesh.C, mesh.stream * shared / mesh.C)
    else:
        what, usual, again = ("all-reduces", 4, 1) if plain else ("collectives", 10, 3)
        says(f"# {what} over SIZE a block", text, usual + again * mesh.full, mesh.stream)
    if mesh.has("tp-comm-overlap"):
        says("two halves of # sequence", text, mesh.B // 2)
    if mesh.has("sequence-parallel"):
        says("holds # of the # rows", text, mesh.B * mesh.T // mesh.t, mesh.B * mesh.T)
    there(text, {"which 2 ranks share": cuts == 2 * mesh.kv, "and padding": cuts * mesh.rows > mesh.V,
                 "tp-comm-overlap": mesh.has("tp-comm-overlap"), "to recompute": mesh.full,
                 "run while weight gradients": plain and not mesh.schedule.startswith("zb")})


def check_pipeline(mesh, text, plan):
    ranks = mesh.t * mesh.d
    for stage in [s for s in range(mesh.p) if s < 3 or s == mesh.p - 1]:
        names = f"{stage * ranks}" if ranks == 1 else f"{stage * ranks}-{stage * ranks + ranks - 1}"
        says(rf"stage {stage} \(ranks? {names}\) [^;]*, # forward pass(?:es)? first;", text, mesh.warm_up(stage))
    parts = mesh.t if not mesh.has("no-scatter-gather") and not mesh.has("caat-fraction") else 1
    says("rank 0 sends SIZE, .*?the output, to rank #", text, mesh.stream * mesh.k / parts, ranks)
    tied = not mesh.llama and mesh.schedule != "zb-v"  # in a V one stage has both uses
    bubble = find(r"by formula a bubble of (\S+)", plan)[0]
    there(text, {"its 1/": parts > 1, "(tied)": tied, f"stand idle for {bubble} of": True})
    if tied:
        says("two gradients, SIZE a rank", text, 4 * mesh.k * mesh.rows * mesh.C / (mesh.d if mesh.zero else 1))


def check_data(mesh, parts):
    if "data_parallel" in parts:
        text = parts["data_parallel"]
        alone = mesh.sites == 1 or mesh.mode in ("dc-s3gd", "diloco")  # gradients stay in the site
        says("of its gradients, SIZE,", text, 4 * mesh.block_parameters())
        there(text, {"an all-reduce of its gradients": mesh.zero == 0 and alone,
                     "a reduce-scatter of its gradients": mesh.zero > 0 or not alone,
                     "in the last micro-batch": mesh.zero < 2 and mesh.m > 1})
    both = parts.get("data_parallel", "") + parts.get("async_dp", "")
    there(both, {"ZeRO-": mesh.zero})
    if mesh.zero:
        part, whole = find(rf"ZeRO-{mesh.zero}: .* its 1/{mesh.d} of every bucket, (\d+) of rank 0's (\d+) pad", both)
        assert int(part) * mesh.d == int(whole)
    if "async_dp" in parts:
        says("# sites? of # replica", parts["async_dp"], mesh.sites, mesh.d // mesh.sites)
        there(parts["async_dp"], {f" {mesh.mode}": True})
    if mesh.has("topology"):  # on a 2 x 2 torus: two steps up, two down
        said = find(r"By (\S+) \(torus:2x2\) the all-reduce takes (\d) steps with 1/(\d+) parts of a bucket; first "
                    r"rank 0 sends (\d)", parts["collectives"])
        assert said in (("multitree", "4", "4", "1"), ("2d-ring", "4", "16", "2"))
        there(parts["collectives"], {"By halving-doubling (full, all to all) the all-reduce between": mesh.sites > 1})
    elif "collectives" in parts:
        numbers = {n for n in (mesh.sites, mesh.d // mesh.sites) if n > 1}
        usual = {"ring" if n & (n - 1) else "halving-doubling" for n in numbers}
        assert set(re.findall(r"By (\S+) \(full, all to all\)", parts["collectives"])) == usual


def check_dry_run(mesh, parts, table):
    """Bytes that rank 0 sends, and that the fullest rank holds: columns of the table of ranks."""
    head = find(r"\n  rank .* (\w\w): params .* sends(?:, (\w\w))?:", table)
    rows = {int(rank): [float(n) for n in row.split()[-9:]]
            for rank, row in re.findall(r"\n  (\d+)(?:\.\.\d+)? +\d+ +\d+ +\d+ +(.*)(?=\n)", table)}
    rank, together = find(r"Rank (\d+) holds (\S+ \w+)", parts["memory"])
    most = max(row[5] for row in rows.values())
    assert all(abs(bytes_of(together) / UNITS[head[0]] - x) <= 0.06 for x in (rows[int(rank)][5], most)), together
    tensor, pipeline, data = rows[0][-3:]
    data *= 4 / 3 if "2d-ring" in parts.get("collectives", "") else 1  # of 4 ranks; the table has the least possible
    for number, *names in (tensor, "tensor"), (pipeline, "schedules"), (data, "data_parallel", "async_dp"):
        sent = re.findall(r"Rank 0 sends (\S+ \w+) a step", " ".join(parts.get(name, "") for name in names))
        unit = UNITS[head[1] or head[0]]
        assert abs(sum(map(bytes_of, sent)) - number * unit) <= 0.011 * unit, f"{names}: {sent}, not {number}"


def check_mesh(options):
    mesh, text, plan = Mesh(options), start(options + " --explain"), start(options + " --dry-run")
    assert max(map(len, text.split("\n"))) <= 100
    whole = re.sub(r"\n  ", " ", text).rstrip("\n").split("\n")
    parts = {find(r"\(docs/(\w+)\.md\)", line)[0]: line for line in whole}
    on = {"step": True, "memory": True, "tensor": mesh.t > 1, "sequence": mesh.has("sequence-parallel"),
          "caat": mesh.has("caat-fraction"), "schedules": mesh.p > 1, "data_parallel": mesh.d // mesh.sites > 1,
          "async_dp": mesh.sites > 1 or mesh.mode in ("dc-s3gd", "diloco"),
          "collectives": mesh.d > 1 and "native" not in options}
    assert [name for name in on if on[name]] == list(parts), list(parts)
    n = mesh.t * mesh.p * mesh.d
    summed = n if mesh.zero else n // mesh.sites
    there(parts["step"], {f"{n} ranks = tensor {mesh.t} x data {mesh.d} x pipeline {mesh.p}": n > 1,
                          "no communication at all": n == 1, "gradient accumulation": mesh.m > 1,
                          f"in {mesh.m} micro-batch{'es' if mesh.m > 1 else ''} of {mesh.B}": True,
                          f"{mesh.replica} on each of {mesh.d} replicas": mesh.d > 1,
                          "before the update": summed > 1, "ranks of a site": 1 < summed < n})
    there(parts["memory"], {"again": mesh.has("recompute")})
    there(parts.get("caat", ""), {"all-reduces of": mesh.has("caat-fraction") and mesh.t > 1})
    if mesh.t > 1:
        check_tensor(mesh, parts)
    if mesh.p > 1:
        check_pipeline(mesh, parts["schedules"], plan)
    check_data(mesh, parts)
    if n > 1:
        check_dry_run(mesh, parts, plan)


def main():
    for mesh in MESHES:
        error = ""
        try:
            check_mesh(mesh)
        except (AssertionError, KeyError) as said:
            error = f"-> {said}"[:900]
        check(not error, f"--explain {mesh} {error}")
    finish()


main()
