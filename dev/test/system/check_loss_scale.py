#!/usr/bin/env python3
"""
check_loss_scale.py: the loss scale of fp16 (trainer/loss_scale.h) in trainers on the emulated GPU.

    dev/test/system/check_loss_scale.py [--build build/emulated] [--only PART]

Parts, each of small runs of BUILD/fp16/train_gpt; every sequence of their text is the same, so that steps on other data
can be compared:

    rule     the log of a run that starts with too large a scale is that of PyTorch's GradScaler for its outcomes, and
             its learning rates are those of the updates made; with --clip 0 too
    skip     a run that begins with k skipped steps ends with the bits of the run at a fixed scale without these
    fixed    scales from 2^4 to 2^16 train the same, within bounds; another one overflows, and the run ends
    resume   from a checkpoint between back-offs, and between growths: the same bits, the same log
    mesh     tensor, pipeline and data ranks, ZeRO, sites: skip the steps that one rank skips
    refused  options that do not fit

Bounds of `fixed`. The first step's loss does not depend on the scale S. Its gradient does where fp16 has no exponent:
an activation's gradient below 2^-14 errs by up to 2^-25, that is 2^-25 / S of the gradient, whose size at the logits
of a token is 1 / N of N tokens. About 10 L C such numbers a token, of independent signs, are sqrt(10 L C) 2^-25 N / S
relative to it. Two runs, and layers that enlarge errors up to 8 times (as in test_emulated.sh): 16 times that. Later
losses may differ by u / 4 = 1.3e-4, as in test_emulated.sh: weights are rounded at random.
"""
import argparse, json, math, os, shutil, subprocess, sys, tempfile

sys.dont_write_bytecode = True
from checks import check, finish, read_safetensors

root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
LAYERS, CHANNELS, SEQUENCE, BATCH = 2, 64, 40, 4
MODEL = f"--layers {LAYERS} --hidden {CHANNELS} --heads 2 --seq {SEQUENCE} --global-batch {BATCH} --lr 1e-3 --eps 1e-3"
RUN = f"--data text.txt --micro-batch 1 --warmup 4 --eval-every 0 --sample-every 0 --check-replicas-every 1 {MODEL}"
TOO_LARGE = 2**25  # the gradient of a logit is up to 2^25 / 160 tokens, above 65504


def start(program, options, ranks=1):
    """Runs a trainer: its exit status and what it printed."""
    launcher = [os.path.join(root, "scripts/mpirun.sh"), "-np", str(ranks)] if ranks > 1 else []
    environment = dict(os.environ, OMP_NUM_THREADS="1", CUDA_ON_CPU_THREADS="1", MATMUL_TIMING="0")
    done = subprocess.run([*launcher, program, *RUN.split(), *options.split()], env=environment, text=True,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=240)
    return done.returncode, done.stdout


def log_of(out):
    with open(f"{out}/log.jsonl", encoding="utf-8") as f:
        return [json.loads(line) for line in f]


def train(program, out, options, ranks=1):
    """The log of a run that has to succeed."""
    shutil.rmtree(out, ignore_errors=True)
    status, text = start(program, f"--out {out} {options}", ranks)
    if status != 0:
        check(False, f"{options}: status {status}: {text[-600:]}")
        sys.exit(1)
    return log_of(out)


def outcomes(log):
    return [(x["grad_norm"] is None, x.get("skipped"), x.get("overflows"), x["loss_scale"]) for x in log]


def by_pytorch(log, scale, window):
    """The outcomes that PyTorch's GradScaler has for the log's gradients."""
    tracker = skipped = 0
    expected = []
    for line in log:
        overflow = line["grad_norm"] is None
        skipped += overflow
        tracker = 0 if overflow else tracker + 1
        grows = tracker == window
        scale *= 0.5 if overflow else 2 if grows else 1
        tracker = 0 if grows else tracker
        expected.append((overflow, True if overflow else None, skipped if overflow else None, scale))
    return expected


def rule(program):
    for more in "", "--clip 0":
        log = train(program, "rule", f"--initial-loss-scale {TOO_LARGE} --loss-scale-window 2 --steps 20 {more}")
        skipped = [x["step"] for x in log if x.get("skipped")]
        check(outcomes(log) == by_pytorch(log, TOO_LARGE, 2), f"{more} steps {skipped} overflow, scales by the rule")
        check(1 in skipped and len(skipped) < 12 and any(4 < step for step in skipped) and
              log[-1]["loss"] < log[0]["loss"] - 0.1, f"    it trains: {log[0]['loss']:.3f} to {log[-1]['loss']:.3f}")
        updates = [x["lr"] for x in log if not x.get("skipped")]
        check(updates[:4] == [0.00025, 0.0005, 0.00075, 0.001] and sorted(updates[3:], reverse=True) == updates[3:],
              "    the warm-up is of the first four updates")


def skip(program):
    log = train(program, "skip", f"--initial-loss-scale {TOO_LARGE} --steps 12 --min-lr 1e-3")
    k = sum(x.get("skipped", False) for x in log)
    fixed = train(program, "fixed", f"--loss-scale {log[-1]['loss_scale']:.0f} --steps {12 - k} --min-lr 1e-3")
    pairs = list(zip(log[k:], fixed))
    check(0 < k < 8 and len(pairs) == 12 - k and not any("skipped" in x for x in log[k:]), f"{k} steps are skipped")
    check(all(a[x] == b[x] for a, b in pairs for x in ("loss", "grad_norm", "lr")),
          f"the others have the losses, norms and rates of a run at {log[-1]['loss_scale']:.0f}, bit for bit")
    check(same(f"skip/step_{12:08}", f"fixed/step_{12 - k:08}"), "and end with the same weights and moments")


def same(a, b):
    """Whether two checkpoints hold the same weights and moments."""
    read = [[read_safetensors(f"{folder}/{name}.safetensors") for name in ("model", "optimizer")] for folder in (a, b)]
    return read[0] == read[1]


def fixed(program):
    base = train(program, "fixed", "--loss-scale 65536 --steps 6")
    noise = math.sqrt(10 * LAYERS * CHANNELS) * 2**-25 * BATCH * SEQUENCE
    for scale in 16, 256, 4096, 16384:
        log = train(program, "other", f"--loss-scale {scale} --steps 6")
        norm = abs(log[0]["grad_norm"] / base[0]["grad_norm"] - 1)
        loss = max(abs(a["loss"] / b["loss"] - 1) for a, b in zip(log, base))
        bound = 16 * noise / scale
        check(norm <= bound and log[0]["loss"] == base[0]["loss"] and {x["loss_scale"] for x in log} == {scale},
              f"scale {scale:5} beside 65536: first norm {norm:.1e}, bound {bound:.1e}")
        check(loss <= 1.3e-4, f"    six losses {loss:.1e}, bound 1.3e-4")
    status, text = start(program, f"--loss-scale {TOO_LARGE} --steps 6")
    check(status == 1 and "--loss-scale dynamic" in text and "step 2" not in text, "a fixed one, too large, fails")
    status, text = start(program, "--lr 1000 --warmup 0 --steps 30")
    check(status == 1 and "the loss is" in text, "so does a loss that is not finite at a dynamic scale")


def resume(program):
    options = f"--initial-loss-scale {TOO_LARGE} --loss-scale-window 4 --steps 18"
    whole = train(program, "whole", f"{options} --save-every 1")
    scales = [x["loss_scale"] for x in whole]
    backs_off = next(i for i in range(1, 18) if scales[i] < scales[i - 1])
    grows = next(i for i in range(backs_off, 18) if scales[i] > scales[i - 1])
    for step in backs_off, grows - 1:  # the next step backs off, the one after the next grows
        shutil.rmtree("again", ignore_errors=True)
        shutil.copytree("whole", "again")
        for later in range(step + 1, 19):
            shutil.rmtree(f"again/step_{later:08}")
        status, text = start(program, f"{options} --out again --resume")
        check(status == 0 and f"step {step}\n" in text, f"resumed from step {step}, at scale {scales[step - 1]:.0f}")
        names = "loss", "grad_norm", "lr", "loss_scale", "skipped", "overflows"
        rows = [[[x.get(name) for name in names] for x in log] for log in (log_of("again"), whole)]
        check(rows[0] == rows[1], "    the same log")
        check(same("again/step_00000018", "whole/step_00000018"), "    the same weights and moments")
    status, text = start(program, f"--steps 19 --loss-scale 4096 --out again --resume")
    check(status == 0 and log_of("again")[-1]["loss_scale"] == 4096, "a fixed scale wins over the checkpoint's")


def mesh(program):
    options = f"--initial-loss-scale {TOO_LARGE} --loss-scale-window 3 --steps 12"
    one = train(program, "one", options)
    for ranks, words in (2, "--pp 2"), (2, "--dp 2 --zero 2"), (4, "--tp 2 --dp 2 --sites 2"), \
            (4, "--pp 2 --dp 2 --clip 0 --schedule zb-h1"):
        log = train(program, "mesh", f"{words} {options}", ranks)
        far = max(abs(a["loss"] / b["loss"] - 1) for a, b in zip(log, one))
        if words.endswith("zb-h1"):
            check(outcomes(log) == by_pytorch(log, TOO_LARGE, 3) and outcomes(log)[:6] == outcomes(one)[:6],
                  f"{words}: its steps are skipped by the rule")
        else:
            check(outcomes(log) == outcomes(one), f"{words}: the same steps are skipped")
            check(far <= 1.3e-4, f"    losses beside one rank's {far:.1e}, bound 1.3e-4")


def refused(program):
    for words, said in ("--loss-scale 0", "1 to"), ("--loss-scale 8x", "1 to"), ("--loss-scale nan", "1 to"), \
            ("--dp 2 --dp-mode diloco --dry-run", "add --loss-scale 65536"):
        status, text = start(program, f"--steps 40 {words}")
        check(status == 2 and said in text, f"{words}: {text.strip().splitlines()[-1][:150]}")
    status, text = start(program, "--dp 2 --dp-mode diloco --dry-run --steps 40 --loss-scale 65536")
    check(status == 0, "--dp-mode diloco with a fixed scale")
    cpu = os.path.join(root, "train_gpt")
    status, text = start(cpu, "--steps 40 --loss-scale 8") if os.path.exists(cpu) else (2, "PRECISION=fp16")
    check(status == 2 and "PRECISION=fp16" in text, f"--loss-scale 8 in another precision: {text.strip()}")


def main():
    parts = {"rule": rule, "skip": skip, "fixed": fixed, "resume": resume, "mesh": mesh, "refused": refused}
    parser = argparse.ArgumentParser(description="the loss scale of fp16")
    parser.add_argument("--build", default="build/emulated")
    parser.add_argument("--only", choices=parts)
    options = parser.parse_args()
    program = os.path.join(os.path.abspath(options.build), "fp16/train_gpt")
    with tempfile.TemporaryDirectory() as work:
        os.chdir(work)
        os.environ["OMPI_MCA_btl_vader_backing_directory"] = work
        with open("text.txt", "w", encoding="utf-8") as f:
            f.write("abcdefgh" * 2000)
        for name, part in parts.items():
            if options.only in (None, name) and (name != "mesh" or os.environ.get("MPIRUN") != ""):
                part(program)
    finish()


if __name__ == "__main__":
    sys.exit(main())
