#!/usr/bin/env python3
"""
Builds the rungs of the kernel ladder, runs each, and prints what it adds to the one before, and the error
nearest to its bound.

    docs/ladder/kernels/kernels.py [--only RUNG ...] [--device cuda] [--plot FILE.svg] [--plant]    in the root

RUNG: 1 to 10, l1 to l3. Without --device cuda kernels run on the emulator, by any C++ compiler (CXX); its time says
nothing of a GPU's, so rates are there with --device cuda only (nvcc, a GPU of compute capability 9.0).
    lines      of the program, without its first comment, that are not in the rung before
    FLOP/byte  of memory or the L2 cache, by the count in the rung's first comment
    error      the one that is nearest to its bound, which the program's check derives
--plant changes one place of a rung, as in PLANTS, and the rung has to fail: its check finds wrong numbers, or the
emulator names the mistake. Threads run in four orders, until one shows it; at most two blocks run at a time.
--plot draws the rates, or FLOP/byte where nothing was measured (pip install matplotlib). Standard library otherwise.
"""
import argparse, concurrent.futures, difflib, os, re, subprocess, sys

HERE, BUILD = "docs/ladder/kernels", "build/ladder/kernels"
RUNGS = [  # file, the rung before, idea, FLOP for each byte
    ("1_threads", None, "a thread an element", 0.5),
    ("2_tiles", "1_threads", "tiles in shared memory", 16),
    ("3_registers", "2_tiles", "8 x 8 sums a thread, cp.async", 64),
    ("4_tensor_cores", "3_registers", "mma.sync, ldmatrix, a swizzle", 64),
    ("5_wgmma", "4_tensor_cores", "wgmma, TMA, a ring of barriers", 64),
    ("6_specialised", "5_wgmma", "roles of warps, persistent blocks", 85),
    ("7_scores", None, "attention, scores in memory", 11),
    ("8_online", "7_scores", "online softmax", 64),
    ("9_flash2", "8_online", "tensor cores: FlashAttention-2", 64),
    ("10_hopper", "9_flash2", "wgmma, roles, turns: FlashAttention-3", 128),
    ("l1_thread_a_row", None, "LayerNorm, a thread a row", None),
    ("l2_warp_a_row", "l1_thread_a_row", "a warp a row", None),
    ("l3_registers", "l2_warp_a_row", "the row in registers", None),
]
FENCE, STALE = "no warpgroup_fence()", "to which the tensor_load"
PLANTS = [  # file, what is wrong, old text, new text, what the check or the emulator says
    ("1_threads", "the last term", "k < s.K;", "k < s.K - 1;", "FAIL C"),
    ("1_threads", "columns beyond the edge", "if (m >= s.M || n >= s.N)", "if (m >= s.M)", "device memory"),
    ("2_tiles", "read before it is complete", "        __syncthreads(); // the tiles are complete\n", "", "FAIL C"),
    ("2_tiles", "written before it is read", "        __syncthreads(); // all threads have read them\n", "", "FAIL C"),
    ("2_tiles", "no zeros beyond K", "row < rows && k < K", "row < rows", "FAIL C"),
    ("3_registers", "a copy in flight", "copy_async_wait<1>()", "copy_async_wait<2>()", "error nan"),
    ("3_registers", "written before it is read", "        __syncthreads(); // all threads have read the stage\n", "",
     "FAIL C"),
    ("4_tensor_cores", "B without the swizzle", "stage.b + tile_place(n + j * 16, k + lane / 8 % 2 * 8)",
     "stage.b + (n + j * 16) * DEPTH + k + lane / 8 % 2 * 8", "FAIL C"),
    ("4_tensor_cores", "squares of A exchanged", "lane % 16, n =", "(lane + 8) % 16, n =", "FAIL C"),
    ("5_wgmma", "stale phase of the readers", "wait(step / STAGES % 2);", "wait(0);", STALE),
    ("5_wgmma", "stale phase of the writer", "wait(step / STAGES % 2 ^ 1);", "wait(1);", "deadlock"),
    ("5_wgmma", "missing fence", "    warpgroup_fence(sum);\n", "", FENCE),
    ("5_wgmma", "missing fence of the barriers", "        barriers_fence();\n", "", "no barriers_fence()"),
    ("5_wgmma", "bytes of one tile only", "arrive_expect(sizeof stage)", "arrive_expect(sizeof stage.a)", STALE),
    ("5_wgmma", "released too early", "if (step > 0) release(shared, step - 1);", "release(shared, step);",
     "overwrites what the wgmma"),
    ("6_specialised", "steps counted anew in each tile", "        float sum[2][64] = {};\n",
     "        float sum[2][64] = {};\n        step = 0;\n", "deadlock"),
    ("6_specialised", "stale phase of the producer", "wait(step / STAGES % 2 ^ 1);", "wait(1);",
     "waits for 49152 more bytes"),
    ("6_specialised", "missing fence", "    warpgroup_fence(sum[0], sum[1]);\n", "", FENCE),
    ("6_specialised", "the last stage is kept", "        release(shared, step - 1);\n        store", "        store",
     "deadlock"),
    ("6_specialised", "sums in flight", "warpgroup_wait<0>(sum[0], sum[1])", "warpgroup_wait<1>(sum[0], sum[1])",
     "still under way"),
    ("6_specialised", "too many registers", "registers_claim<232>", "registers_claim<240>", "registers_claim"),
    ("7_scores", "mask off by one", "for (int j = 0; j <= i; j++) sum += row[j]",
     "for (int j = 0; j < i; j++) sum += row[j]", "FAIL O"),
    ("8_online", "missing rescale", "out[d] *= factor;", "out[d] *= 1.0f;", "FAIL O"),
    ("8_online", "mask off by one", "if (key + j > i)", "if (key + j > i + 1)", "FAIL lse"),
    ("9_flash2", "missing rescale", "        scale_rows(out, factor);\n", "", "FAIL O"),
    ("9_flash2", "mask of the lower row", "> y + i / 2 % 2 * 8)", "> y)", "FAIL O"),
    ("9_flash2", "rows share a sum", "lanes_sum(sum[r], 4)", "lanes_sum(sum[r], 8)", "FAIL O"),
    ("10_hopper", "missing rescale", "        scale_rows(out, factor);\n", "", "FAIL O"),
    ("10_hopper", "stale phase", "full[n % SLOTS].wait(n / SLOTS % 2);", "full[n % SLOTS].wait(0);", STALE),
    ("10_hopper", "missing fence", "        warpgroup_fence(p);\n        start_rows(p, query, tile);\n        tile",
     "        start_rows(p, query, tile);\n        tile", FENCE),
    ("10_hopper", "a turn that nobody passes on", "        barrier_arrive(TURN + 1 - part, 256);\n", "", "deadlock"),
    ("l1_thread_a_row", "variance without the mean", "((float)x[c] - m) * ((float)x[c] - m)",
     "(float)x[c] * (float)x[c]", "FAIL out"),
    ("l2_warp_a_row", "half a warp's sum", "m = lanes_sum(sum)", "m = lanes_sum(sum, 16)", "FAIL out"),
    ("l3_registers", "numbers beyond C", "if ((i / 8 * 32 + lane) * 8 < a.C) squares", "squares", "FAIL out"),
]


def text_of(name):
    with open(f"{HERE}/{name}.cu", encoding="utf-8") as file:
        return file.read()


def build(name, text, device):
    """-> the program"""
    source, program, compiler = f"{BUILD}/{name}.cu", f"{BUILD}/{name}", os.environ.get("CXX", "g++")
    with open(source, "w", encoding="utf-8") as file:
        file.write(text)
    words = ["nvcc", "-std=c++17", "-O3", "-arch=sm_90a"] if device == "cuda" else [
        compiler, "-std=gnu++17", "-O1", "-pthread", "-Wall", "-Wextra", "-Wno-unknown-pragmas", "-Wno-sign-compare",
        *([] if "clang" in compiler else ["-Wno-maybe-uninitialized"]), "-x", "c++"]
    done = subprocess.run(words + ["-I", HERE, source, "-o", program] + ([] if device == "cuda" else ["-ldl"]),
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True, check=False)
    if done.returncode:
        sys.exit(f"kernels.py: {name} does not build:\n{done.stdout}")  # also in a thread: its result raises it
    return program


def run(program, order=0):
    """-> exit status, all that was printed"""
    cores = dict(os.environ, CUDA_ON_CPU_THREADS="2", CUDA_ON_CPU_ORDER=str(order))
    done = subprocess.run([program], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True,
                          timeout=300, check=False, env=cores)
    return done.returncode, done.stdout


def run_planted(name, text, says):
    """-> whether the program failed and said so, and what it printed"""
    program = build(name, text, "emulated")
    for order in range(4):
        status, output = run(program, order)
        if status:
            break
    return status != 0 and says in output, output


def new_lines(name, before):
    """Lines of code that are not in the rung before."""
    old, new = (text_of(rung).split("*/\n", 1)[1].splitlines() if rung else [] for rung in (before, name))
    return sum(line[0] == "+" for line in difflib.ndiff(old, new))


def worst(output):
    """The error that is nearest to its bound, and this bound, as printed."""
    found = re.findall(r"^(?:ok|FAIL) .*error (\S+) +bound (\S+)", output, re.M)
    return max(found, key=lambda x: float(x[0].replace("nan", "inf")) / float(x[1]), default=("", ""))


def draw(path, rows, unit):
    from matplotlib import pyplot  # the file's name chooses the format
    figure, axes = pyplot.subplots(figsize=(7, 0.4 * len(rows) + 1))
    bars = axes.barh([name for name, _ in rows], [value for _, value in rows], color="#1f6feb")
    axes.bar_label(bars, padding=3, fmt="%g")
    axes.invert_yaxis()
    axes.set_xlabel(unit)
    figure.savefig(path, bbox_inches="tight")


def climb(rungs, device, pool):
    jobs = [pool.submit(lambda name: run(build(name, text_of(name), device)), name) for name, *_ in rungs]
    failed, rates = 0, []
    print(f"     {'rung':16} {'new':38} lines  FLOP/byte     error     bound")
    for (name, before, idea, count), job in zip(rungs, jobs):
        status, output = job.result()
        last, rate = output.rsplit("\n", 2)[-2:][0], re.findall(r"time .* ([\d.]+) (TFLOP/s|GB/s)", output)
        ok = status == 0 and re.fullmatch(r"[1-9]\d* passed, 0 failed", last)
        failed += not ok
        error, bound = worst(output)
        print(f"{'ok' if ok else 'FAIL':4} {name:16} {idea:38} {new_lines(name, before):5}  {count or '':>9}  "
              f"{error:>8}  {bound:>8}  {last}  {' '.join(rate[0]) if rate else ''}", flush=True)
        if not ok:
            print(output)
        rates += [(name, float(rate[0][0]))] if rate and rate[0][1] == "TFLOP/s" else []
    return failed, rates


def plant(rungs, pool):
    jobs, failed, names = [], 0, [name for name, *_ in rungs]
    for i, (name, what, old, new, says) in enumerate(PLANTS):
        if name in names and text_of(name).count(old) != 1:
            sys.exit(f"kernels.py: {name}.cu has {text_of(name).count(old)} times, in place of once: {old}")
        if name in names:
            text = text_of(name).replace(old, new)
            jobs.append((name, what, says, pool.submit(run_planted, f"plant_{i}", text, says)))
    for name, what, says, job in jobs:
        ok, output = job.result()
        failed += not ok
        line = next((line for line in output.splitlines() if says in line), output[-200:])
        print(f"{'ok' if ok else 'FAIL':4} {name:16} {what:32} {re.sub(r'[^ ]*/', '', line)[:100]}", flush=True)
    return len(jobs), failed


def main():
    about = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    about.add_argument("--only", nargs="+", metavar="RUNG")
    about.add_argument("--device", choices=["emulated", "cuda"], default="emulated")
    about.add_argument("--plot", metavar="FILE.svg")
    about.add_argument("--plant", action="store_true")
    o = about.parse_args()
    rungs = [rung for rung in RUNGS if os.path.exists(f"{HERE}/{rung[0]}.cu") and
             (not o.only or rung[0].split("_")[0] in o.only)]
    os.makedirs(BUILD, exist_ok=True)
    with concurrent.futures.ThreadPoolExecutor(1 if o.device == "cuda" else 2) as pool:
        if o.plant:
            count, failed = plant(rungs, pool)
        else:
            count, (failed, rates) = len(rungs), climb(rungs, o.device, pool)
    if o.plot and not o.plant:
        draw(o.plot, rates or [(name, flop) for name, _, _, flop in rungs if flop],
             "TFLOP/s" if rates else "FLOP for each byte of memory or L2")
    print(f"{count - failed} passed, {failed} failed")
    return failed > 0 or count == 0


if __name__ == "__main__":
    sys.exit(main())
