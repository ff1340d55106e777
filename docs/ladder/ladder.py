#!/usr/bin/env python3
"""
Builds the rungs of the ladder, runs each on at most 4 ranks, draws their losses as one picture, and fails if they are
not those of rung 1.

    docs/ladder/ladder.py [--only RUNG ...] [--plot FILE.svg]    make ladder; RUNG: 1 to 10, a, b; in the project's root

The bound. All rungs add up the same numbers, in different orders. A sum of n terms in float32 has a relative error of
some sqrt(n) u, u = 2^-24 (Higham 1993), and a gradient is a sum over the BATCH T = 512 rows of a step: e = sqrt(512) u.
A step then moves the P weights by at most LEARNING_RATE each, with the relative error e, so after s steps they are off
by s LEARNING_RATE e sqrt(P) in the Euclidean norm, which changes the loss by that times the norm of the gradient, at
most some 3. The loss itself is a sum over rows, too: together e (loss + 3 s LEARNING_RATE sqrt(P)). Before the first
update the norms of the gradient have to agree to e, which sees what is counted twice.
Standard library only.
"""
import functools, math, os, re, subprocess, sys, time

HERE = "docs/ladder"
RUNS = [  # file, ranks, arguments, in words
    ("1_one_process", 1, [], "one process"),
    ("2_data_parallel", 4, [], "data parallel, ring"),
    ("2_data_parallel", 4, ["mpi"], "data parallel, MPI's all-reduce"),
    ("3_overlap", 4, [], "overlap"),
    ("4_zero1", 4, [], "ZeRO-1"),
    ("5_tensor", 4, ["2"], "tensor 2, data 2"),
    ("5_tensor", 4, ["4"], "tensor 4"),
    ("6_sequence", 4, ["2"], "sequence 2, data 2"),
    ("6_sequence", 4, ["4"], "sequence 4"),
    ("7_pipeline", 4, ["2"], "tensor 2, pipeline 2"),
    ("7_pipeline", 4, ["1"], "pipeline 4"),
    ("8_three_dimensions", 4, ["2", "2"], "(t, p, d) = (2, 2, 1)"),
    ("8_three_dimensions", 4, ["2", "1"], "(t, p, d) = (2, 1, 2)"),
    ("8_three_dimensions", 4, ["1", "2"], "(t, p, d) = (1, 2, 2)"),
    ("9_context", 2, [], "context 2"),
    ("9_context", 4, [], "context 4"),
    ("10_zero3", 2, [], "ZeRO-3, data 2"),
    ("10_zero3", 4, [], "ZeRO-3, data 4"),
    ("a_multitree", 4, [], "MultiTree"),
    ("b_dc_s3gd", 4, [], "synchronous rule of rung b"),
    ("b_dc_s3gd", 1, [], "dc-s3gd on one rank"),  # its label begins with the column that it compares
]
LINE = r"step +\d+ .*?\b{} ([\d.]+)(?: norm ([\d.]+))?"
ROWS, LEARNING_RATE, WEIGHTS = 512, 3e-3, 4 * (2 * 32 + 12 * 32 * 32) + 128 * 32 + 32 * 32 + 32
ERROR = math.sqrt(ROWS) * 2.0 ** -24
COLORS = ["#1f6feb", "#d1242f", "#1a7f37", "#9a6700", "#8250df", "#0a7ea4", "#bf3989", "#57606a", "#f28e2b", "#1f2328"]


def number(name):
    """The rung of a file: 1 to 10, a, b."""
    return name.split("_")[0]


def bound(step, loss):
    return ERROR * (loss + 3 * (step - 1) * LEARNING_RATE * math.sqrt(WEIGHTS)) + 1e-6  # six digits are printed


def command(words, what):
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True, check=False)
    if done.returncode:
        sys.exit(f"ladder.py: {what}: {' '.join(words)} ended with {done.returncode}:\n{done.stdout[-2000:]}")
    return done.stdout


@functools.lru_cache(None)
def build(name):
    program = f"build/ladder/{name}"
    compiler = os.environ.get("CC", "cc") if number(name) == "1" else os.environ.get("MPICC", "mpicc")
    command([compiler, "-O3", "-march=native", "-ffast-math", "-Wall", "-Wextra", f"{HERE}/{name}.c", "-o", program,
             "-lm"], f"{name} does not build")
    return program


def run(name, ranks, arguments, label):
    """The loss and the norm of the gradient of every step."""
    start = ["scripts/mpirun.sh", "-np", str(ranks)] if number(name) != "1" else []
    output = command(start + [build(name)] + arguments, name)
    line = LINE.format("dc-s3gd" if label.startswith("dc-s3gd") else "loss")
    return [(float(loss), float(norm or 0)) for loss, norm in re.findall(line, output)]


def largest_difference(steps, reference):
    """The largest difference from rung 1's losses in units of its bound, and whether the first norms agree."""
    if len(steps) != len(reference) or not steps:
        sys.exit(f"ladder.py: {len(steps)} steps printed, rung 1 printed {len(reference)}")
    worst = max(abs(loss - right) / bound(step + 1, right)
                for step, ((loss, _), (right, _)) in enumerate(zip(steps, reference)))
    norm, right = steps[0][1], reference[0][1]
    return worst, norm == 0 or abs(norm - right) <= ERROR * right + 1e-6


def draw(path, curves):
    """Curves that coincide, one over the other, each thinner than the one below."""
    width, height, left, top, bottom = 720, 380, 50, 20, 40
    high, low, last = 5.0, 2.0, len(curves[0][1])
    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
           'font-size="12">', f'<rect width="{width}" height="{height}" fill="white"/>']
    for loss in range(3, 6):
        y = top + (height - top - bottom) * (high - loss) / (high - low)
        svg.append(f'<line x1="{left}" x2="{width - 20}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
                   f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{loss}</text>')
    for i, (label, steps) in enumerate(curves):
        points = " ".join(f"{left + (width - left - 20) * (step + 1) / last:.1f},"
                          f"{top + (height - top - bottom) * (high - loss) / (high - low):.1f}"
                          for step, (loss, _) in enumerate(steps))
        color, y = COLORS[i % len(COLORS)], top + 14 + 18 * i
        svg.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-linejoin="round" '
                   f'stroke-width="{1.3 * (len(curves) - i) - 0.2:.1f}"/>'
                   f'<rect x="{width - 300}" y="{y - 9}" width="18" height="10" fill="{color}"/>'
                   f'<text x="{width - 276}" y="{y}">{label}</text>')
    svg.append(f'<text x="{width / 2}" y="{height - 10}" text-anchor="middle">step; loss in nats per byte</text></svg>')
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(svg) + "\n")


def main(arguments):
    plot = None
    if "--plot" in arguments:
        at = arguments.index("--plot")
        plot, arguments = arguments[at + 1], arguments[:at] + arguments[at + 2:]
    only = [word for word in arguments if word != "--only"]
    chosen = [row for row in RUNS if not only or number(row[0]) in only]
    os.makedirs("build/ladder", exist_ok=True)
    os.environ.setdefault("MPIEXEC_TIMEOUT", "300")  # seconds after which mpirun ends a run that hangs
    reference, curves, failed, begin = run(*RUNS[0]), [], 0, time.time()
    print("largest difference from rung 1's losses, in units of the bound")
    for i, (name, ranks, words, label) in enumerate(chosen):
        steps = run(name, ranks, words, label)
        worst, norms = largest_difference(steps, reference)
        ok = worst <= 1 and norms
        failed += not ok
        left = (time.time() - begin) / (i + 1) * (len(chosen) - i - 1)
        print(f"{'ok' if ok else 'FAIL':5} {name:19} {label:32} loss {steps[-1][0]:.6f}  {worst:6.3f}"
              f"{'' if norms else '  the norms of the first gradient differ'}  {left:3.0f} s left", flush=True)
        if number(name).isdigit() and all(known != name for known, _, _ in curves):
            curves.append((name, f"{number(name)}: {label}", steps))
    if plot:
        draw(plot, [(label, steps) for _, label, steps in curves])
    print(f"{len(chosen) - failed} passed, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
