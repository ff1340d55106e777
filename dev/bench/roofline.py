#!/usr/bin/env python3
"""dev/bench/roofline.py [--model gpt2-124M]: the least time of a training step on one GPU, and what we aim at.

Without a model six of them, a line each, as scripts read it; with one operation by operation:

    floor = the largest of  FLOP / product,  bytes / copy,  exponentials / exponentials a second

product, copy: what this GPU was measured to reach with a large matrix product and a large copy (bytes read and
written), which bench_gpu measures. The exponentials are the third limit of attention: 16 a clock and multiprocessor.
Operations run one after the other, so a step's floor is the sum. (Williams, Waterman and Patterson 2009: "Roofline".)

Which operations there are, ./plan --operations says, from the lists of planner/ops.h. Here they get bytes:

    product      operands once, the result once; the gradient of a weight is float32, 4 bytes an element, and 8 where
                 a micro-batch adds to it. GELU in an epilogue is part of its product: N F numbers and exponentials more
    attention    FLOP of the lower triangle only, backward 2.5 times forward: five products instead of two (Dao 2023).
                 Every array once; backward, these kernels make two passes, seven products (`executed`), and every
                 exponential twice: the price of sums in a fixed order
    memory       every array as often as the kernel reads or writes it; no row statistics, 8 bytes of a row of 2 C

No credit for what is still in L2, so an operation on small arrays may beat its floor. Goals are shares of an H200's
ceilings, so they scale with what is measured: what public kernels reach there (FlashAttention-2 and -3, cuDNN,
ThunderKittens, cuBLASLt); `stretch`: the best of them. All of it is a prediction: nothing was measured on the models.
"""
import argparse, json, math, os, re, subprocess, sys
from types import SimpleNamespace

HERE = os.path.dirname(os.path.abspath(__file__))
PLAN = os.environ.get("PLAN", os.path.join(HERE, "..", "..", "plan"))
CASES = {"gpt2-124M": (64, 1024), "gpt2-350M": (32, 1024), "gpt2-774M": (32, 1024), "gpt2-1558M": (32, 1024),
         "llama-1.1B": (16, 2048), "llama-7B": (8, 2048)}  # sequences of a step, their tokens
GIB, BESIDE = 2 ** 30, 3e9  # BESIDE the plan: context, kernels' code, cuBLASLt's workspace, scratch memory: an estimate


def plan(*options):
    done = subprocess.run([PLAN, *map(str, options)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          check=False)
    return done.stdout if done.returncode == 0 else sys.exit(f"roofline.py: {done.stderr.strip()}")


def goals_of_product(C):
    """Goal and stretch by the number of channels: with sums of 768 the end of one tile is not hidden behind the next,
    and 1600 are 12.5 tiles. TFLOP/s of an H200's 790."""
    size = (C >= 1024) + (C >= 2048)
    return (660, 690, 720)[size] / 790, (700, 720, 750)[size] / 790


def goals_of_attention(T, HS, backward):
    """TFLOP/s, counted causally, at 1024, 2048 and 4096 tokens; between them by the logarithm. Heads of 64: forward
    FlashAttention-2 and -3, backward FlashAttention-2 and an estimate, as no better one is published."""
    tables = (((245, 315, 355), (180, 222, 248)), ((350, 440, 490), (208, 290, 390))), \
             (((290, 371, 420), (210, 295, 390)), ((423, 521, 579), (230, 347, 468)))
    at = min(2, max(0, math.log2(T / 1024)))
    i = int(at >= 1)
    return tuple((x[i] + (at - i) * (x[i + 1] - x[i])) / 790 for x in (of[HS > 64][backward] for of in tables))


def goals_of_memory(name):
    if name in ("norm backward", "bias gradient", "embedding backward"):  # sums over rows besides
        return 0.88, 0.93
    return (0.93, 0.975) if name == "classifier" else (0.92, 0.96)  # classifier: 13.2 GB in 3.3 and 3.15 ms


def row_of(line, step):
    """An operation of ./plan --operations as a row: flops, executed, bytes, exps, goal, stretch."""
    part, times, name, kind, *sizes = line.split("\t")
    m, n, k, batch, flops, moved, _ = map(float, sizes)
    x = SimpleNamespace(part=part, count=int(times), name=name, kind=kind.split()[0], m=m, n=n, k=k, flops=flops,
                        executed=flops, bytes=moved, exps=0.0)
    backward = "backward" in name
    if x.kind == "product":
        x.bytes = batch * (2 * (m * k + k * n) + (step.dw_bytes if kind.endswith("dW") else 2) * m * n)
        x.goal, x.stretch = goals_of_product(step.C)
    elif x.kind == "attention":
        rows = batch * m
        out, qkv = 2 * rows * k, 2 * rows * k / step.C * step.qkv
        x.executed = flops / 5 * 7 if backward else flops
        x.bytes = 2 * (qkv + out) + out + 8 * rows if backward else qkv + out + 4 * rows  # lse; D
        x.exps = rows * m / 2 * (2 if backward else 1)
        x.goal, x.stretch = goals_of_attention(m, k, backward)
    else:
        if name.startswith("activation") or name == "classifier":  # of that for the sum, and for the gradient
            x.exps = m * (2 if name == "classifier" else 1)
        x.goal, x.stretch = goals_of_memory(name)
    return x


def rows_of(step, lines):
    """GELU that is part of the product before it becomes part of its row; equal operations become one row."""
    rows, last = {}, None
    for line in lines:
        row = row_of(line, step)
        if row.name.startswith("activation") and step.gpt2 and last.kind == "product":
            del rows[last.name, last.bytes]
            last.name += ", dGELU" if "backward" in row.name else ", GELU"
            last.bytes, last.exps, row = last.bytes + row.bytes, row.exps, last
        last = rows.setdefault((row.name, row.bytes), row)
        last.count += row.count if last is not row else 0
    return list(rows.values())


def options_of(name, B, micro, T, V):
    return ("--model", name, "--seq", T, "--vocab", V, "--gpus", 1, "--cluster", "dgx-h200", "--global-batch", B,
            "--micro-batch", micro, "--any-memory")


def step_of(name, B, T, micro, room):
    """A step of B sequences of T tokens, `micro` at once; 0: the largest power of two with which it fits."""
    said = plan("--model", name, "--gpus", 1, "--cluster", "dgx-h200", "--any-memory", "--rows", 1)
    L, C, V = map(int, re.search(r"(\d+) layers, (\d+) channels, \d+ heads, vocabulary (\d+)", said).groups())
    step = SimpleNamespace(name=name, B=B, T=T, micro=micro or B, L=L, C=C, V=-(-V // 128) * 128,
                           gpt2=f"{name}: gpt2" in said)
    memory = lambda: json.loads(plan(*options_of(name, B, step.micro, T, step.V), "--json"))[0]["bytes"]
    while not micro and memory() + BESIDE > room:
        if step.micro % 2:
            sys.exit(f"roofline.py: {name}: no micro-batch fits into {room / GIB:.0f} GiB")
        step.micro //= 2
    _, *lines = plan(*options_of(name, B, step.micro, T, step.V), "--operations").splitlines()
    step.qkv = next(int(line.split("\t")[5]) for line in lines if "\tqkv\tproduct\t" in line)
    step.dw_bytes = 8 - 4 * step.micro / B
    step.rows = rows_of(step, lines)
    step.parameters = next(float(line.split("\t")[4]) for line in lines if "\toptimizer\t" in line)
    step.per_token = 6 * step.parameters + 6 * L * C * T  # that MFU counts; full: all of attention
    step.per_token_full = step.per_token + 6 * L * C * T
    step.memory = memory()
    return step


def floor_of(row, c):
    """Seconds of one, and what sets them."""
    return max((row.flops / c.product, "product"), (row.bytes / c.copy, "copy"), (row.exps / c.exponentials, "ex2"),
               key=lambda x: x[0])


def seconds_of(row, c, share):
    """Of one at a share of its ceiling, never below the floor; of a product's own arrays 0.92 of the copy."""
    most = max(row.flops / (c.product * share), row.bytes / (c.copy * 0.92)) if row.flops else \
        row.bytes / (c.copy * share)
    return max(most, floor_of(row, c)[0])


def totals_of(step, c):
    sums = {name: sum(row.count * getattr(row, name) for row in step.rows)
            for name in ("flops", "executed", "bytes", "exps")}
    part_of = lambda kind: sum(row.count * floor_of(row, c)[0] for row in step.rows if row.kind == kind)
    t = SimpleNamespace(**sums, part={kind: part_of(kind) for kind in ("product", "attention", "memory")})
    t.floor = sum(t.part.values())
    t.goal = sum(row.count * seconds_of(row, c, row.goal) for row in step.rows)
    t.stretch = sum(row.count * seconds_of(row, c, row.stretch) for row in step.rows)
    return t


def mfu(step, c, seconds, full=False):
    return 100 * (step.per_token_full if full else step.per_token) * step.B * step.T / seconds / c.peak


def measured_by(path, model, c):
    """{(operation, elements): seconds} of bench_gpu --json for a model, whose ceilings become those of c."""
    lines = [json.loads(line) for line in open(path, encoding="utf-8")] if path else []
    for line in lines:
        if line.get("model") == "ceiling":
            setattr(c, line["operation"].split()[1], line["rate"])
    return {(line["operation"], line["elements"]): line["ms"] / 1e3 for line in lines if line.get("model") == model}


def print_rows(step, c, measured):
    print(f"{'operation':30} {'count':>6} {'GFLOP':>10} {'MB':>10} {'Mex2':>10} {'bound':8} {'floor us':>10} "
          f"{'sum ms':>9} {'goal ms':>9} {'stretch':>9}   goal")
    for row in step.rows:
        floor, bound = floor_of(row, c)
        goal = f"{row.goal * c.product / 1e12:.0f} TFLOP/s" if row.flops else f"{100 * row.goal:.0f} % of the copy"
        print(f"{row.name:30} {row.count:6} {row.flops / 1e9:10.1f} {row.bytes / 1e6:10.1f} {row.exps / 1e6:10.1f} "
              f"{bound:8} {1e6 * floor:10.1f} {1e3 * row.count * floor:9.2f} "
              f"{1e3 * row.count * seconds_of(row, c, row.goal):9.2f} "
              f"{1e3 * row.count * seconds_of(row, c, row.stretch):9.2f}   {goal}", end="")
        of = [seconds for (name, elements), seconds in measured.items() if name == row.name and
              (not elements or abs(elements / row.m - 1) < 1e-3)]
        print(f"; measured {1e6 * of[0]:.1f} us, floor {100 * floor / of[0]:.0f} %" if of else "")


def print_one(step, c, room, measured):
    t = totals_of(step, c)
    print(f"{step.name}: {step.B // step.micro} x {step.micro} sequences of {step.T} tokens, vocabulary {step.V}, "
          f"{step.parameters / 1e6:.1f} M parameters; {c.product / 1e12:.0f} TFLOP/s, {c.copy / 1e12:.2f} TB/s, "
          f"{c.exponentials / 1e12:.2f} Tex2/s\n")
    print_rows(step, c, measured)
    parts = ", ".join(f"{kind} {1e3 * seconds:.2f}" for kind, seconds in t.part.items())
    print(f"\nsum       {t.flops / 1e12:.1f} TFLOP ({t.executed / 1e12:.1f} executed), {t.bytes / 1e9:.1f} GB; "
          f"floor {1e3 * t.floor:.2f} ms: {parts}")
    print(f"MFU of {c.peak / 1e12:.1f} TFLOP/s: causal counts (6 N + 6 L C T) {step.per_token / 1e9:.4f} GFLOP a "
          f"token, full (6 N + 12 L C T) {step.per_token_full / 1e9:.4f}")
    biases = sum(row.count * floor_of(row, c)[0] for row in step.rows if row.name == "bias gradient")
    for name, seconds in (("floor, copies behind the products", t.part["product"] + t.part["attention"]),
                          ("floor, one after the other", t.floor),
                          ("the same, biases' gradients fused", t.floor - biases),
                          ("the same, seven products backward", t.floor + (t.executed - t.flops) / c.product),
                          ("stretch", t.stretch), ("goal", t.goal)):
        print(f"{name:34} {1e3 * seconds:9.2f} ms {step.B * step.T / seconds:9.0f} tokens/s   MFU "
              f"{mfu(step, c, seconds):5.1f} % causal, {mfu(step, c, seconds, True):5.1f} % full")
    print(f"memory    {step.memory / GIB:.2f} GiB of {room / GIB:.0f}; about {BESIDE / GIB:.1f} beside that")


def print_six(c, room):
    print("model floor_ms goal_ms GFLOP_a_token with_all_of_attention GiB at_once sequences tokens vocabulary "
          "stretch_ms tokens_a_second MFU")
    for name, (B, T) in CASES.items():
        step = step_of(name, B, T, 0, room)
        t = totals_of(step, c)
        print(f"{name} {1e3 * t.floor:.3f} {1e3 * t.goal:.3f} {step.per_token / 1e9:.6f} "
              f"{step.per_token_full / 1e9:.6f} {step.memory / GIB:.2f} {step.micro} {B} {T} {step.V} "
              f"{1e3 * t.stretch:.3f} {B * T / t.goal:.0f} {mfu(step, c, t.goal):.1f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", help="operation by operation")
    parser.add_argument("--measured", metavar="FILE", help="of bench_gpu --json: its ceilings, its times beside floors")
    # An H200 (SXM, 700 W): products of 8192^3 in bf16 on random data 769 to 798 TFLOP/s, copy of large arrays; both
    # measured. 132 multiprocessors x 16 a clock x 1.755 GHz: derived.
    for name, usual, what in (("product", 790, "TFLOP/s of a matrix product"), ("copy", 4.3, "TB/s of a copy"),
                              ("exponentials", 132 * 16 * 1.755e-3, "10^12 a second"),
                              ("peak", 989.4, "TFLOP/s of the data sheet"), ("memory", 139, "GiB")):
        parser.add_argument(f"--{name}", type=float, default=usual, help=what)
    args = parser.parse_args()
    c = SimpleNamespace(**{name: 1e12 * getattr(args, name) for name in ("product", "copy", "exponentials", "peak")})
    measured, room = measured_by(args.measured, args.model, c), args.memory * GIB
    if not args.model:
        return print_six(c, room)
    print_one(step_of(args.model, *CASES.get(args.model, (32, 1024)), 0, room), c, room, measured)


if __name__ == "__main__":
    main()
