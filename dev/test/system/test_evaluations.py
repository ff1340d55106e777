#!/usr/bin/env python3
"""
test_evaluations.py: train_gpt --evaluate as it is used: beside training, in the log and on the screen; alone, with a
checkpoint or with --init, on any mesh; and what is refused. What the numbers have to be is test_evaluate.c's matter;
here they have to agree with each other: the run's last evaluation and that of its checkpoint.

    dev/test/system/test_evaluations.py
"""
import json, os, random, re, shutil, struct, tempfile

from checks import TRAIN, check, finish, launch, read_log

CHOICES = "dev/test/reference/evaluation.choices"
MODEL = "--layers 2 --hidden 32 --heads 2 --seq 16 --micro-batch 2 --global-batch 8 --sample-every 0 --warmup 2".split()
LOADED = ("--arch gpt2 --layers 4 --hidden 16 --heads 4 --ffn 40 --seq 8 --vocab 61 "
          "--init dev/test/reference/replicas_gpt2.safetensors").split()


def train(*arguments, ranks=1):
    return launch(TRAIN, *arguments, ranks=ranks)


def table(done):
    """The last table on the screen: {file: [examples, acc, acc_norm]}."""
    found = re.findall(r"^evaluated.*\n((?:  +\S+(?: +[\d.]+){3}\n)*)", done.stdout, re.M)
    rows = map(str.split, found[-1].splitlines() if found else [])
    return {name: [float(number) for number in numbers] for name, *numbers in rows}


def write_files(work):
    """A text, and questions whose parts are drawn from few letters."""
    draw, stream = random.Random(4), []
    words = ["the", "dog", "runs", "home", "and", "sleeps", "\n"]
    with open(f"{work}/text", "w") as f:
        f.write("".join(draw.choice(words) + " " for _ in range(1601))[:1601])
    for number in range(30):
        label = draw.randrange(2)
        parts = [[draw.randrange(97, 102) for _ in range(draw.randrange(1, 12))] for _ in range(3)]
        body = [number, label, 2] + [x for part in parts for x in [len(part), *part]]
        stream += [65535, 2 * len(body) + 4, *body]
    with open(f"{work}/choices", "wb") as f:
        f.write(struct.pack(f"<256i{len(stream)}H", 20240522, 1, 30, 1000, *[0] * 252, *stream))


def test_training(work, number, mode, ranks):
    """Beside training."""
    name, text, choices = " ".join(mode) or "one rank", f"{work}/text", f"{work}/choices"
    out, plain = f"{work}/out{number}", f"{work}/plain{number}"
    common = [*MODEL, *mode, "--steps", "7", "--data", text, "--val", text]
    done = train(*common, "--eval-every", "2", "--eval-sequences", "100000", "--evaluate", choices, "--out", out,
                 ranks=ranks)
    other = train(*common, "--eval-every", "0", "--out", plain, ranks=ranks)
    if not check(done.returncode == other.returncode == 0, f"{name}: trains and evaluates {done.stderr[-300:]}"):
        return
    log, shown = read_log(out), table(done)
    last = log[-1]["evaluations"]
    check([x["step"] for x in log if "evaluations" in x] == [2, 4, 6, 7] and
          [(e["file"], e["examples"]) for e in last] == [(choices, 30)], f"{name}: after steps 2, 4, 6 and the last")
    losses = [[x["loss"] for x in read_log(folder)] for folder in (out, plain)]
    check(losses[0] == losses[1], f"{name}: the losses of a run that is not evaluated, to the last digit: {losses}")
    check(shown == {choices: [30, round(last[0]["acc"], 4), round(last[0]["acc_norm"], 4)]} and
          len(re.findall(r"^evaluated after step", done.stdout, re.M)) == 4, f"{name}: four tables, the last {shown}")

    # The checkpoint alone, on another mesh, without data; a file of options does not make it train.
    times = lambda: sorted((name, os.path.getmtime(f"{out}/{name}")) for name in os.listdir(out))
    before = times()
    done = train(*MODEL[:8], "--vocab", "256", "--pp", "2", "--out", out, "--resume", "--evaluate", choices, ranks=2)
    check(done.returncode == 0 and table(done) == shown and times() == before,
          f"{name}: the checkpoint alone, on two stages: {table(done)} {done.stderr[-300:]}; nothing is written")


def test_alone():
    with open("dev/test/reference/evaluation.json") as f:
        reference = json.load(f)["models"]["gpt2"]
    for mesh, ranks in (([], 1), (["--tp", "2"], 2), (["--dp", "3"], 3)):
        done = train(*LOADED, *mesh, "--evaluate", CHOICES, ranks=ranks)
        rows = table(done)
        check(done.returncode == 0 and rows.get(CHOICES) == [43, *(round(n / 43, 4) for n in reference["right"])],
              f"--init {' '.join(mesh)}: {rows.get(CHOICES)} {done.stderr[-300:]}")
    done = train(*LOADED, "--evaluate", CHOICES, "--dry-run")
    check(done.returncode == 0 and "43 examples" in done.stdout and not table(done), "--dry-run evaluates nothing")


def refused(word, *arguments):
    done = train(*arguments)
    check(done.returncode == 1 and word in done.stderr and len(done.stderr.splitlines()) == 1,
          f"refused: {done.stderr.strip()[-400:]}")


def test_refused(work):
    """One of each kind; damaged files, and models that a file does not fit: test_evaluate.c."""
    refused(f"{work}/text", *LOADED, "--evaluate", f"{work}/text")
    refused("--seq 7", *LOADED[:10], "--seq", "7", *LOADED[12:], "--evaluate", CHOICES)
    refused(CHOICES, *MODEL, "--steps", "1", "--data", CHOICES)


def test_texts(work):
    """Texts and JSON lines in any combination: the run's vocabulary makes tokens of all of them, or all are bytes."""
    text, lines, shards, vocabulary = (f"{work}/{x}" for x in ("text", "j.jsonl", "shards", "vocabulary"))
    with open(text) as f, open(lines, "w") as j:
        j.write(json.dumps({"text": f.read()}) + "\n")
    os.mkdir(vocabulary)
    shutil.copy("dev/test/reference/tokenizer_gpt2.json", f"{vocabulary}/tokenizer.json")
    tokenize = os.path.join(os.environ.get("BUILD", "build"), "tokenize")
    for command in ["make", "-s", tokenize], [tokenize, "--tokenizer", vocabulary, "--data", text, "--val", "0",
                                              "--out", shards]:
        made = launch(*command)
        check(made.returncode == 0, f"shards of the text: {command[0]} {made.stderr}")
    shard = f"{shards}/train_000000.bin"

    def losses(*arguments):
        done = train(*MODEL, "--steps", "3", *arguments)
        steps = re.findall(r"loss ([0-9.]+)(?: \| val ([0-9.]+))?", done.stdout)
        check(len(steps) == 3, f"{' '.join(arguments)}: trains {done.stderr[-300:]}")
        return steps

    initial, by_shard = f"{work}/initial", losses("--data", shard, "--val", shard)
    for data in (text, lines, shard):
        for val in (text, lines, shard):
            seen = losses("--data", data, "--val", val, "--tokenizer", vocabulary)
            check(seen == by_shard, f"{data}, {val}: as with shards: {seen} {by_shard}")
    check(losses("--data", shard, "--val", text) == by_shard, "a text beside shards has the vocabulary beside them")
    bytes_of = [losses("--data", data, "--val", val, "--eval-sequences", "50")
                for data in (text, lines) for val in (text, lines)]
    check(len({tuple(steps[:2]) for steps in bytes_of}) == 1, f"without a vocabulary all are bytes: {bytes_of}")

    # Weights that have a vocabulary beside them.
    losses("--data", shard, "--export", initial)
    init = ["--steps", "2", "--micro-batch", "2", "--global-batch", "8", "--sample-every", "0", "--init", initial]
    seen = [re.findall("loss ([0-9.]+)", train(*init, "--data", data, "--val", val).stdout)
            for data in (text, lines, shard) for val in (text, lines)]
    check(len(seen[0]) == 2 and all(x == seen[0] for x in seen), f"--init with a vocabulary: {seen}")
    os.unlink(f"{shards}/tokenizer.json")
    refused("--tokenizer", *MODEL, "--steps", "1", "--data", shard, "--val", text)


def main():
    with tempfile.TemporaryDirectory(prefix="evaluations.") as work:
        write_files(work)
        test_alone()
        test_refused(work)
        test_texts(work)
        test_training(work, 1, [], 1)
        test_training(work, 2, ["--dp", "2", "--dp-mode", "diloco", "--local-steps", "3"], 2)
    finish()


main()
