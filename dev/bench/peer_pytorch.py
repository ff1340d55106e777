#!/usr/bin/env python3
"""
peer_pytorch.py: a training step in PyTorch, the peer of `make bench` on the CPU and of dev/test/gpu_check.sh on a GPU.

    peer_pytorch.py [--model gpt2-124M] [--B 4] [--T 64] [--threads N] [--steps 10] [--compile] [--tuned] [--bf16]
    peer_pytorch.py --products [--bf16] [--threads N] [--steps 10]
    peer_pytorch.py --device cuda --compile --model gpt2-124M --B 64 --T 1024 [--micro 32] --vocab 50304

The work of our step: forward, loss, backward, AdamW; the same shapes, random weights and tokens. On the CPU in float32,
or with --bf16, and on a GPU, bf16 by autocast, with float32 weights and moments, as nanoGPT and others train: matrices
and attention in bf16. In PyTorch's favour: no gradient norm and no clipping; wherever the installed version has
something fused, it is used (scaled_dot_product_attention from 2.0, on a GPU the fastest of its backends there; fused
AdamW; torch.compile by --compile). --tuned adds settings below that make it faster on a CPU than it is as installed.
--micro: sequences that are worked on at once. Prints one line of JSON; median and minimum of `steps` steps after
unmeasured ones (two; where it compiles on a GPU five). --products: instead a line of GFLOP/s for each product of
bench_matmul.c. Exit status 3: --device cuda, and this PyTorch has no GPU.
"""
import argparse, contextlib, ctypes, json, math, os, resource, statistics, sys, time

MODELS = {  # L, C, NH, NKV, F, V; as model.h has them
    "gpt2-124M": ("gpt2", 12, 768, 12, 12, 3072, 50257),
    "gpt2-350M": ("gpt2", 24, 1024, 16, 16, 4096, 50257),
    "gpt2-774M": ("gpt2", 36, 1280, 20, 20, 5120, 50257),
    "gpt2-1558M": ("gpt2", 48, 1600, 25, 25, 6400, 50257),
    "llama-1.1B": ("llama", 22, 2048, 32, 4, 5632, 32000),
    "llama-7B": ("llama", 32, 4096, 32, 32, 11008, 32000),
    "tiny-gpt2": ("gpt2", 2, 64, 2, 2, 256, 256),  # for tests
    "tiny-llama": ("llama", 2, 64, 4, 2, 192, 256),
}
parser = argparse.ArgumentParser()
parser.add_argument("--model", choices=MODELS, default="gpt2-124M")
parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
for name, usual in (("vocab", 0), ("B", 4), ("micro", 0), ("T", 64), ("threads", os.cpu_count()), ("steps", 10)):
    parser.add_argument(f"--{name}", type=int, default=usual)
for name in ("compile", "tuned", "bf16", "products"):
    parser.add_argument(f"--{name}", action="store_true")
args = parser.parse_args()
micro = args.micro or args.B
if args.B % micro:
    parser.error(f"--micro {micro} does not divide --B {args.B}")
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = str(args.threads)  # read when the libraries are loaded
# OpenMP's threads spin when they wait. With a BLAS that brings threads of its own (Debian's OpenBLAS) the two sets then
# fight for the cores: 1.5 times as slow on two cores, worse on a busy machine. PyPI's, in a venv, has one set.
if args.tuned and sys.prefix == sys.base_prefix:
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# glibc gives large blocks back to the system and takes them again, page by page, on every step: a fifth of the time.
libc = ctypes.CDLL(None)
if args.tuned and hasattr(libc, "mallopt"):
    libc.mallopt(-4, 0)  # M_MMAP_MAX: no block by mmap
    libc.mallopt(-1, -1)  # M_TRIM_THRESHOLD: nothing is given back

import torch
import torch.nn as nn
import torch.nn.functional as F

cuda = args.device == "cuda"
if cuda and not torch.cuda.is_available():
    print(f"PyTorch {torch.__version__} has no GPU here")
    sys.exit(3)
arch, L, C, NH, NKV, FFN, V = MODELS[args.model]
V = args.vocab or V
HS, MAX_T = C // NH, max(1024, args.T)


def attention(q, k, v, future):
    """Causal attention of (B, NH, T, HS), of which k and v may have fewer heads; future: (T, T), -inf above the
    diagonal."""
    if k.shape[1] != NH:
        k, v = (z.repeat_interleave(NH // NKV, 1) for z in (k, v))
    if hasattr(F, "scaled_dot_product_attention"):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    B, _, T, _ = q.shape
    q, k, v = (z.reshape(B * NH, T, HS) for z in (q, k, v))
    scores = torch.baddbmm(future, q, k.transpose(1, 2), alpha=1 / math.sqrt(HS))  # scale and mask in the product
    return (scores.softmax(-1) @ v).view(B, NH, T, HS)


def fastest_backend():
    """Leaves attention on a GPU its fastest backend here, forward and backward; returns the name."""
    ms, names = {}, ("flash", "cudnn", "mem_efficient")
    choose = lambda chosen: [getattr(torch.backends.cuda, f"enable_{n}_sdp")(n == chosen) for n in (*names, "math")]
    q, k, v = torch.randn(3, micro, NH, args.T, HS, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    for name in 20 * names:
        with contextlib.suppress(RuntimeError):  # it has none for this shape or GPU
            choose(name)
            start = time.perf_counter()
            F.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward()
            torch.cuda.synchronize()
            ms[name] = min(ms.get(name, 1e9), time.perf_counter() - start)
    best = min(ms, key=ms.get)
    choose(best)
    return best


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(C), nn.LayerNorm(C)
        self.qkv, self.attn_proj = nn.Linear(C, 3 * C), nn.Linear(C, C)
        self.fc, self.mlp_proj = nn.Linear(C, FFN), nn.Linear(FFN, C)

    def forward(self, x, future, rope):
        B, T, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(B, T, 3, NH, HS).permute(2, 0, 3, 1, 4)
        x = x + self.attn_proj(attention(q, k, v, future).transpose(1, 2).reshape(B, T, C))
        return x + self.mlp_proj(F.gelu(self.fc(self.norm2(x)), approximate="tanh"))


class RMSNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(C))

    def forward(self, x):
        y = x.float()
        return (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-5)).type_as(x) * self.weight.type_as(x)


def rotate(x, rope):
    """Rotary positions: x (B, heads, T, HS), rope cosines and sines (T, HS / 2)."""
    a, b = x.chunk(2, -1)
    cosine, sine = (z.type_as(x) for z in rope)
    return torch.cat((a * cosine - b * sine, b * cosine + a * sine), -1)


class LlamaBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = RMSNorm(), RMSNorm()
        self.qkv, self.attn_proj = nn.Linear(C, (NH + 2 * NKV) * HS, bias=False), nn.Linear(C, C, bias=False)
        self.fc, self.mlp_proj = nn.Linear(C, 2 * FFN, bias=False), nn.Linear(FFN, C, bias=False)

    def forward(self, x, future, rope):
        B, T, _ = x.shape
        heads = self.qkv(self.norm1(x)).view(B, T, NH + 2 * NKV, HS).transpose(1, 2)
        q, k, v = heads.split((NH, NKV, NKV), 1)
        x = x + self.attn_proj(attention(rotate(q, rope), rotate(k, rope), v, future).transpose(1, 2).reshape(B, T, C))
        gate, up = self.fc(self.norm2(x)).chunk(2, -1)
        return x + self.mlp_proj(F.silu(gate) * up)


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        gpt2 = arch == "gpt2"
        self.wte, self.wpe = nn.Embedding(V, C), nn.Embedding(MAX_T, C) if gpt2 else None
        self.blocks = nn.ModuleList(Block() if gpt2 else LlamaBlock() for _ in range(L))
        self.norm = nn.LayerNorm(C) if gpt2 else RMSNorm()
        self.head = None if gpt2 else nn.Linear(C, V, bias=False)
        nn.init.normal_(self.wte.weight, std=0.02)
        angles = torch.arange(MAX_T)[:, None] * 10000.0 ** (-torch.arange(0, HS, 2) / HS)
        self.register_buffer("cosine", angles.cos(), persistent=False)
        self.register_buffer("sine", angles.sin(), persistent=False)

    def forward(self, inputs, targets):
        T = inputs.shape[1]
        future = None
        if not hasattr(F, "scaled_dot_product_attention"):
            future = torch.full((T, T), -math.inf, device=inputs.device).triu(1)
        x = self.wte(inputs)
        if self.wpe is not None:
            x = x + self.wpe.weight[:T]
        for block in self.blocks:
            x = block(x, future, (self.cosine[:T], self.sine[:T]))
        weight = self.wte.weight if self.head is None else self.head.weight  # tied
        logits = F.linear(self.norm(x), weight)
        return F.cross_entropy(logits.view(-1, V).float(), targets.reshape(-1))


def adamw(model):
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    try:
        return torch.optim.AdamW(groups, lr=1e-4, betas=(0.9, 0.95), fused=True)
    except (TypeError, RuntimeError):  # before 2.4 there is none for the CPU
        return torch.optim.AdamW(groups, lr=1e-4, betas=(0.9, 0.95))


def products():
    """GFLOP/s of the products of a linear layer of N tokens: forward, gradients of the input and of the weight."""
    for N, OC, K in ((n, *s) for n in (256, 1024) for s in ((2304, C), (C, C), (FFN, C), (C, FFN), (50304, C))):
        dtype = torch.bfloat16 if args.bf16 else torch.float32
        x, w, dout = ((torch.rand(shape) - 0.5).to(dtype) for shape in ((N, K), (OC, K), (N, OC)))
        kinds = {"forward": lambda: F.linear(x, w), "d input": lambda: dout @ w, "d weight": lambda: dout.t() @ x}
        for kind, product in kinds.items():
            seconds = []
            for _ in range(args.steps + 1):
                start = time.perf_counter()
                product()
                seconds.append(time.perf_counter() - start)
            print(f"{N:5} {OC:6} {K:5}  {kind:8} {2e-9 * N * OC * K / statistics.median(seconds[1:]):8.1f}", flush=True)


torch.set_num_threads(args.threads)
torch.manual_seed(0)
if args.products:
    products()
    sys.exit(0)
backend = fastest_backend() if cuda else ""
if cuda:
    torch.set_float32_matmul_precision("high")
with torch.device(args.device) if cuda else contextlib.nullcontext():  # 7B is made where it is used
    model = GPT()
optimizer = adamw(model)
loss_of = torch.compile(model) if args.compile else model
ms, unmeasured = [], 5 if cuda and args.compile else 2
for step in range(unmeasured + args.steps):
    tokens = torch.randint(V, (args.B, args.T + 1)).to(args.device)
    if cuda:
        torch.cuda.synchronize()
    start = time.perf_counter()
    for first in range(0, args.B, micro):
        part = tokens[first : first + micro]
        with torch.autocast(args.device, torch.bfloat16, enabled=cuda or args.bf16):
            loss = loss_of(part[:, :-1], part[:, 1:].contiguous())
        if first == 0:
            optimizer.zero_grad(set_to_none=True)
        (loss * micro / args.B).backward()
    optimizer.step()
    if cuda:
        torch.cuda.synchronize()
    ms.append(1e3 * (time.perf_counter() - start))
ms, median = ms[unmeasured:], statistics.median(ms[unmeasured:])
if cuda:
    peak_mb = torch.cuda.max_memory_reserved() / 1e6
else:
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6  # Linux counts in KiB
print(json.dumps({
    "peer": "pytorch", "version": torch.__version__ + (" compiled" if args.compile else ""), "model": args.model,
    "device": torch.cuda.get_device_name() if cuda else "cpu", "precision": "bf16" if cuda or args.bf16 else "fp32",
    "B": args.B, "micro": micro, "T": args.T, "threads": args.threads, "median_ms": round(median, 1),
    "min_ms": round(min(ms), 1), "tokens_per_s": round(1e3 * args.B * args.T / median, 1), "peak_mb": round(peak_mb, 1),
    "loss": round(loss.item(), 3), "attention": backend}))
