#!/usr/bin/env python3
"""make bench: what the tables in docs/benchmarks.md say, on this machine, each contestant in the same run.

    dev/bench/run.py [step] [mesh] [matmul] [kernels]      all of them without a word

    step         a training step of GPT-2 124M, in float32 and bf16, beside PyTorch and llm.c
    mesh         two ranks beside one rank with as many threads
    matmul, kernels     the programs bench_*.c, in both precisions; products beside PyTorch's

Contestants take turns, three times; medians count. Peers: OpenBLAS and oneDNN if their libraries are installed (apt-get
install libopenblas0 libdnnl2), PyTorch if PYTORCH=venv/bin/python3 can import torch, llm.c if LLMC=folder names a
checkout of it. LENGTHS="64 256 1024": the tokens of a sequence. ./train_gpt is of make PRECISION=fp32.
"""
import glob, json, os, re, shutil, statistics, subprocess, sys, tempfile, time

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
BUILD, PYTORCH = os.environ.get("BUILD", "build"), os.environ.get("PYTORCH", "/usr/bin/python3")
ROUNDS, CORES = 3, str(os.cpu_count())
MODEL = "--layers 6 --hidden 384 --heads 6 --seq 256 --global-batch 32 --micro-batch 2 --steps 5 --warmup 0"
MESHES = {f"1 rank, {CORES} threads": "", "tensor 2": "--tp 2",
          "tensor 2, sequence parallel": "--tp 2 --sequence-parallel", "pipeline 2": "--pp 2", "data 2": "--dp 2",
          "data 2, ZeRO-1": "--dp 2 --zero 1", "data 2, ZeRO-2": "--dp 2 --zero 2"}


def output(command, **other):
    done = subprocess.run(command, capture_output=True, text=True, **other)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


def medians(trainer, options, ranks=1):
    """A run's medians, without its first step: tokens/s, idle time; the most MB; the measured peak in GFLOP/s."""
    with tempfile.TemporaryDirectory() as out:
        start = ["scripts/mpirun.sh", "-np", str(ranks)] if ranks > 1 else []
        said = output([*start, trainer, *options.split(), "--eval-every", "0", "--sample-every", "0", "--out", out])
        with open(os.path.join(out, "log.jsonl"), encoding="utf-8") as log:
            lines = [json.loads(line) for line in log][1:]
    of = lambda name: [line[name] for line in lines]
    peak = re.search(r"measured peak (\d+) GFLOP", said)
    return {"tokens": statistics.median(of("tokens_per_s")), "idle": statistics.median(of("bubble")),
            "mb": max(of("peak_mem_bytes")) / 1e6, "peak": float(peak.group(1)) if peak else float("nan")}


def has_pytorch():
    return subprocess.run([PYTORCH, "-c", "import torch"], capture_output=True).returncode == 0


def pytorch(*options):
    return output([PYTORCH, "dev/bench/peer_pytorch.py", "--threads", CORES, *options])


def contestants(B, T):
    """{name: a function that makes a run: {tokens, mb}}, ours first."""
    ours = f"--model gpt2-124M --seq {T} --micro-batch {B} --steps 6 --warmup 0 --lr 1e-4 --min-lr 1e-4"
    runs = {"threefold fp32": lambda: medians("./train_gpt", ours),
            "threefold bf16": lambda: medians(f"{BUILD}/bf16/train_gpt", ours)}
    for flags in ("", "--tuned", "--bf16", "--bf16 --tuned") if has_pytorch() else ():
        def peer(flags=flags):
            line = json.loads(pytorch("--B", str(B), "--T", str(T), "--steps", "3", *flags.split()))
            return {"tokens": line["tokens_per_s"], "mb": line["peak_mb"]}
        runs[f"PyTorch {'bf16' if 'bf16' in flags else 'fp32'}{', tuned' * ('tuned' in flags)}"] = peer
    if os.environ.get("LLMC"):
        command = ["dev/bench/peer_llmc.sh", os.environ["LLMC"], str(B), str(T)]
        runs["llm.c fp32"] = lambda: {"mb": float("nan"), "tokens": json.loads(
            output(command, env={**os.environ, "STEPS": "2"}))["tokens_per_s"]}
    return runs


def step(B, T):
    runs, found = contestants(B, T), {}
    for _ in range(ROUNDS):
        for name, run in runs.items():
            found.setdefault(name, []).append(run())
    of = lambda name, what: statistics.median(run[what] for run in found[name])
    for name in runs:
        we = of("threefold bf16" if "bf16" in name else "threefold fp32", "tokens")
        more = f"{of(name, 'mb'):6.0f} MB"
        if name.startswith("threefold"):  # 6 N a token; the log's mfu counts attention, too
            more += f"   {100 * 6 * 124439808 * we / of(name, 'peak') / 1e9:.1f} % of the peak"
        print(f"{name:20} {B} x {T:5} {of(name, 'tokens'):10.1f} tokens/s, ours {we / of(name, 'tokens'):.2f}x {more}",
              flush=True)


def mesh():
    text = glob.glob("data/*/input.txt")
    options, found = MODEL + (f" --data {text[0]}" if text else ""), {}
    for _ in range(ROUNDS):
        for name, words in MESHES.items():
            found.setdefault(name, []).append(medians("./train_gpt", f"{options} {words}", 2 if words else 1))
    one = statistics.median(run["tokens"] for run in next(iter(found.values())))
    print(options)
    for name, runs in found.items():
        tokens, idle = (statistics.median(run[what] for run in runs) for what in ("tokens", "idle"))
        print(f"{name:30} {tokens:10.0f} tokens/s {100 * tokens / one:6.0f} % of 1 rank {100 * idle:6.1f} % idle")


def programs(part):
    for folder in (BUILD, f"{BUILD}/bf16"):
        print(output([f"{folder}/bench_{part}"]), end="")
    for flags in ([], ["--bf16"]) if part == "matmul" and has_pytorch() else ():
        print("PyTorch", *flags, CORES, "threads, GFLOP/s\n" + pytorch("--products", *flags), end="")


def main():
    os.chdir(ROOT)
    parts = sys.argv[1:] or ["matmul", "kernels", "step", "mesh"]
    if shutil.which("lscpu"):
        print("machine:", re.search(r"Model name: +(.*)", output(["lscpu"])).group(1), f"{CORES} cores;", end=" ")
    print(time.strftime("%F"), output(["git", "describe", "--always", "--dirty"]).strip())
    if {"step", "mesh"} & set(parts) and ", fp32" not in output(["./train_gpt", "--version"]):
        sys.exit("run.py: ./train_gpt is not of float32: make PRECISION=fp32 train_gpt")
    for part in parts:
        print(f"\n== {part}", flush=True)
        if part == "step":
            for T in os.environ.get("LENGTHS", "64 256 1024").split():
                step(4, int(T))
        elif part == "mesh":
            mesh()
        elif part in ("matmul", "kernels"):
            programs(part)
        else:
            sys.exit(f"run.py: there is no {part}\n{__doc__}")


if __name__ == "__main__":
    main()
