#!/usr/bin/env python3
"""
check_roofline.py PLAN: dev/bench/roofline.py. FLOP of a step beside products written out by hand; bytes of rows beside
counts by hand; the floor of six models beside the tables of a list that was made without this program, from which it
differs by what our kernels do otherwise, and by nothing else; memory, micro-batches, goals, other ceilings.
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


def bytes_more(step):
    """Bytes that our kernels move and the other list does not, where nothing else sets the floor."""
    C, F, _, _, _ = shape(step)
    N, L, n, wte = step.B * step.T, step.L, step.parameters, step.V * step.C
    X = 2 * N * C
    more = X + (3 + 1) * X * step.gpt2 + 4 * X - X  # the stream's gradient is zeroed; positions; a float32 row a token
    more += 4 * (n + wte * step.gpt2) + 12 * wte * step.gpt2  # float32 gradients are zeroed; two of a tied embedding
    more += 2 * n + 2 * n - L * (2 + 6) * X - 8 * N * (2 + 4 * L)  # float32 gradients; no atomics; no row statistics
    heads, kv, _ = LLAMA.get(step.name, (0, 0, 0))
    return more + (L * (5 * X + 2 * N * F) if step.gpt2 else 2 * L * 4 * N * C * (heads + kv) / max(heads, 1))


def check_model(name, c):
    B, T = rf.CASES[name]
    step = rf.step_of(name, B, T, B, math.inf)
    C, F, qkv, fc, multiplied = shape(step)
    N, t, again = B * T, rf.totals_of(step, c), step.L * step.C * T * B * T
    check(near(t.flops, 6 * multiplied * N + 3.5 * 2 * again), f"{name}: 6 FLOP a token and weight, 7 L C T")
    check(near(t.executed - t.flops, 2 * again), "  executed: two products of the scores more")
    moved = {"qkv": 2 * (N * C + C * qkv + N * qkv), "fc dW": 2 * N * (C + fc) + 8 * C * fc,  # float32, added to
             "attention": 2 * N * (qkv + C) + 4 * N * C / (64 if C < 4096 else 128), "classifier": 4 * N * step.V,
             "optimizer": 30 * step.parameters}  # g, master, m, v in; master, m, v, p out
    if step.gpt2:
        gelu = 2 * (N * C + C * F + 2 * N * F)
        moved.update({"fc, GELU": gelu, "mlp projection dX, dGELU": gelu})
        biases = [x for x in step.rows if x.name == "bias gradient"]
        check(row(step, "fc, GELU").exps == N * F and sum(x.count for x in biases) == 4 * step.L and
              sorted(x.bytes for x in biases) == [2 * N * C, 6 * N * C, 8 * N * C], "  GELU, gradients of biases")
    else:
        moved.update({"activation": 6 * N * F, "activation backward": 10 * N * F, "rope": 4 * N * (C + (qkv - C) / 2)})
    wrong = [name for name, size in moved.items() if not near(row(step, name).bytes, size)]
    check(not wrong, f"  bytes of {', '.join(wrong or moved)}")
    check(all(0 < rf.floor_of(x, c)[0] <= rf.seconds_of(x, c, x.stretch) <= rf.seconds_of(x, c, x.goal)
              for x in step.rows) and t.floor < t.stretch < t.goal and
          len({(x.name, x.bytes) for x in step.rows}) == len(step.rows), "  each once; floor < stretch < goal")
    return step, t


def main():
    c = ceilings()
    noted = {"gpt2-124M": (77.90, 0.005), "gpt2-350M": (108.4, 0.05), "gpt2-774M": (229.9, 0.05),
             "gpt2-1558M": (450.6, 0.05)}  # ms of the other list
    for name in rf.CASES:
        step, t = check_model(name, c)
        if name in noted:
            here, more = 1e3 * t.floor, 1e3 * bytes_more(step) / c.copy
            check(abs(here - more - noted[name][0]) <= noted[name][1], f"  floor {here:.3f} ms, {noted[name]}")
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
    for T, HS, backward, goals in ((512, 64, 0, (245, 290)), (1024, 64, 1, (180, 210)), (2048, 128, 0, (440, 521)),
                                   (8192, 64, 1, (248, 390)), (1024 * 2 ** 0.5, 64, 0, (280, 330.5))):
        found = rf.goals_of_attention(T, HS, backward)
        check(all(near(790 * x, y) for x, y in zip(found, goals)), f"attention: {goals}")
    for C, goals in ((768, (660, 700)), (1024, (690, 720)), (1600, (690, 720)), (2048, (720, 750))):
        check(all(near(790 * x, y) for x, y in zip(rf.goals_of_product(C), goals)), f"products of {C}: {goals}")
    done = launch(rf.__file__, "--memory", 79, PLAN=rf.PLAN)
    check("llama-7B: no micro-batch fits" in done.stderr and done.stdout.count("\n") == 6, "7B is not for 79 GiB")
    finish()


main()
