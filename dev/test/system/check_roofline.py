#!/usr/bin/env python3
"""
check_roofline.py PLAN: dev/bench/roofline.py. FLOP of a step beside products written out by hand; bytes of rows beside
counts by hand (of what is between products: test_planner_step.c); memory, micro-batches, goals, other ceilings.
"""
import math, sys
from types import SimpleNamespace

from checks import check, finish, launch, near
import roofline as rf

rf.PLAN = sys.argv[1]
H200 = dict(product=790e12, copy=4.3e12, exponentials=132 * 16 * 1.755e9, peak=989.4e12)
LLAMA = {"llama-1.1B": (32, 4, 5632), "llama-7B": (32, 32, 11008)}  # heads, key/value heads, F


def ceilings(**other):
    return SimpleNamespace(**{**H200, **other})


def row(step, name):
    return next(x for x in step.rows if x.name == name)


def shape(step):
    """C, F, columns of q, k and v and of the mlp's first matrix, parameters that a token is multiplied by."""
    NH, NKV, F = LLAMA.get(step.name, (1, 1, 4 * step.C))
    fc, qkv = F if step.gpt2 else 2 * F, step.C * (1 + 2 * NKV / NH)
    return step.C, F, qkv, fc, step.L * (step.C * (qkv + step.C + fc) + F * step.C) + step.V * step.C


def check_model(name, c):
    B, T = rf.CASES[name]
    step = rf.step_of(name, B, T, B, math.inf)
    C, F, qkv, fc, multiplied = shape(step)
    N, t, again = B * T, rf.totals_of(step, c), step.L * step.C * T * B * T
    check(near(t.flops, 6 * multiplied * N + 3.5 * 2 * again), f"{name}: 6 FLOP a token and weight, 7 L C T")
    check(near(t.executed - t.flops, 2 * again), "  executed: two products of the scores more")
    heads = N * C / (64 if C < 4096 else 128)
    moved = {"qkv": 2 * (N * C + C * qkv + N * qkv), "fc dW": 2 * N * (C + fc) + 4 * C * fc,
             "attention": 2 * N * (qkv + C) + 4 * heads, "attention backward": 2 * N * (2 * qkv + 3 * C) + 8 * heads,
             "classifier": 4 * N * step.V, "optimizer": 30 * step.parameters}  # g, master, m, v in; master, m, v, p out
    if step.gpt2:
        gelu = 2 * (N * C + C * F + 2 * N * F)
        moved.update({"fc, GELU": gelu, "mlp projection dX, dGELU": gelu, "zero gradients": 4 * (step.V + T) * C})
        biases = [x for x in step.rows if x.name == "bias gradient"]
        check(row(step, "fc, GELU").exps == N * F and sum(x.count for x in biases) == 2 * step.L and
              sorted(x.bytes for x in biases) == [6 * N * C, 8 * N * C], "  GELU, gradients of biases")
    else:
        moved.update({"activation": 6 * N * F, "activation backward": 10 * N * F, "rope": 4 * N * (C + (qkv - C) / 2)})
    wrong = [name for name, size in moved.items() if not near(row(step, name).bytes, size)]
    check(not wrong, f"  bytes of {', '.join(wrong or moved)}")
    check(all(0 < rf.floor_of(x, c)[0] <= rf.seconds_of(x, c, x.stretch) <= rf.seconds_of(x, c, x.goal)
              for x in step.rows) and t.floor < t.stretch < t.goal and
          len({(x.name, x.bytes) for x in step.rows}) == len(step.rows), "  each once; floor < stretch < goal")


def main():
    c = ceilings()
    for name in rf.CASES:
        check_model(name, c)
    step = rf.step_of("gpt2-124M", 64, 1024, 64, math.inf)
    check(abs(step.per_token - 0.8035e9) < 5e4 and abs(rf.mfu(step, c, 77.9e-3) - 68.3) < 0.05, "GFLOP a token, MFU")
    whole, parts = rf.totals_of(step, c), rf.totals_of(rf.step_of("gpt2-124M", 64, 1024, 16, math.inf), c)
    check(near(parts.flops, whole.flops) and near(parts.bytes - whole.bytes, 3 * (3 * 2 + 8 - 2) * shape(step)[4]),
          "four micro-batches: the same FLOP, weights and their gradients three times more")
    slow = rf.totals_of(step, ceilings(product=395e12, copy=2.15e12, exponentials=c.exponentials / 2))
    check(near(slow.floor, 2 * whole.floor) and near(slow.goal, 2 * whole.goal), "half as fast: twice floor and goal")
    check(rf.floor_of(row(step, "attention"), ceilings(exponentials=1e11))[1] == "ex2", "exponentials bound")
    for room, micro in ((25e9, 32), (13e9, 16)):
        check(rf.step_of("gpt2-124M", 64, 1024, 0, room).micro == micro, f"{room:.0f} bytes: {micro} at once")
    ends = [rf.goals_of_attention(T, 64, 1) for T in (512, 1024, 1024 * 2 ** 0.5, 2048, 4096, 8192)]
    check(near(790 * ends[0][0], 180) and near(790 * ends[5][0], 248) and
          near(790 * rf.goals_of_attention(512, 128, 0)[1], 423) and
          ends[0] == ends[1] < ends[3] < ends[4] == ends[5] and
          all(near(2 * x, a + b) for x, a, b in zip(ends[2], ends[1], ends[3])), "attention: goals between its lengths")
    check([round(790 * x) for C in (768, 1600, 2048) for x in rf.goals_of_product(C)] == [660, 700, 690, 720, 720, 750],
          "goals of products")
    done = launch(rf.__file__, "--memory", 79, PLAN=rf.PLAN)
    check("llama-7B: no micro-batch fits" in done.stderr and done.stdout.count("\n") == 6, "7B is not for 79 GiB")
    finish()


main()
