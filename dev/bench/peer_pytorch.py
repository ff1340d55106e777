#!/usr/bin/env python3
"""
peer_pytorch.py: one training step of GPT-2 124M in PyTorch on the CPU, the peer of `make bench`.

    python3 dev/bench/peer_pytorch.py [--B 4] [--T 64] [--threads N] [--steps 10] [--compile] [--tuned]

The work of our step: forward, loss, backward, AdamW; float32, the same shapes, random weights and tokens. In
PyTorch's favour: no gradient norm and no clipping; wherever the installed version has something fused, it is used
(scaled_dot_product_attention from 2.0, the CPU's fused AdamW from 2.4, torch.compile by --compile). --tuned adds two
settings below that make it faster than it is as installed. Prints one line of JSON; median and minimum of `steps` steps after two
unmeasured ones.
"""
import argparse, ctypes, json, math, os, resource, statistics, time

parser = argparse.ArgumentParser()
parser.add_argument("--B", type=int, default=4)
parser.add_argument("--T", type=int, default=64)
parser.add_argument("--threads", type=int, default=os.cpu_count())
parser.add_argument("--steps", type=int, default=10)
parser.add_argument("--compile", action="store_true")
parser.add_argument("--tuned", action="store_true")
args = parser.parse_args()
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = str(args.threads)  # read when the libraries are loaded
# OpenMP's threads spin when they wait. With a BLAS that brings threads of its own (Debian's OpenBLAS) the two sets then
# fight for the cores: 1.5 times as slow on two cores, worse on a busy machine.
if args.tuned:
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# glibc gives large blocks back to the system and takes them again, page by page, on every step: a fifth of the time.
libc = ctypes.CDLL(None)
if args.tuned and hasattr(libc, "mallopt"):
    libc.mallopt(-4, 0)  # M_MMAP_MAX: no block by mmap
    libc.mallopt(-1, -1)  # M_TRIM_THRESHOLD: nothing is given back

import torch
import torch.nn as nn
import torch.nn.functional as F

V, MAX_T, L, NH, C = 50257, 1024, 12, 12, 768


def attention(q, k, v, future):
    """Causal attention of (B, NH, T, HS); future: (T, T), -inf above the diagonal."""
    if hasattr(F, "scaled_dot_product_attention"):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    B, NH, T, HS = q.shape
    q, k, v = (z.reshape(B * NH, T, HS) for z in (q, k, v))
    scores = torch.baddbmm(future, q, k.transpose(1, 2), alpha=1 / math.sqrt(HS))  # scale and mask in the product
    return (scores.softmax(-1) @ v).view(B, NH, T, HS)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(C), nn.LayerNorm(C)
        self.qkv, self.attn_proj = nn.Linear(C, 3 * C), nn.Linear(C, C)
        self.fc, self.mlp_proj = nn.Linear(C, 4 * C), nn.Linear(4 * C, C)

    def forward(self, x, future):
        B, T, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(B, T, 3, NH, C // NH).permute(2, 0, 3, 1, 4)
        x = x + self.attn_proj(attention(q, k, v, future).transpose(1, 2).reshape(B, T, C))
        return x + self.mlp_proj(F.gelu(self.fc(self.norm2(x)), approximate="tanh"))


class GPT2(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(V, C), nn.Embedding(MAX_T, C)
        self.blocks = nn.ModuleList(Block() for _ in range(L))
        self.norm = nn.LayerNorm(C)
        nn.init.normal_(self.wte.weight, std=0.02)

    def forward(self, inputs, targets):
        T = inputs.shape[1]
        future = torch.full((T, T), -math.inf).triu(1)
        x = self.wte(inputs) + self.wpe.weight[:T]
        for block in self.blocks:
            x = block(x, future)
        logits = F.linear(self.norm(x), self.wte.weight)  # tied
        return F.cross_entropy(logits.view(-1, V), targets.view(-1))


def adamw(model):
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    try:
        return torch.optim.AdamW(groups, lr=1e-4, betas=(0.9, 0.95), fused=True)
    except (TypeError, RuntimeError):  # before 2.4 there is none for the CPU
        return torch.optim.AdamW(groups, lr=1e-4, betas=(0.9, 0.95))


torch.set_num_threads(args.threads)
torch.manual_seed(0)
model = GPT2()
optimizer = adamw(model)
loss_of = torch.compile(model) if args.compile else model
ms = []
for step in range(2 + args.steps):
    tokens = torch.randint(V, (args.B, args.T + 1))
    start = time.perf_counter()
    loss = loss_of(tokens[:, :-1], tokens[:, 1:].contiguous())
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    ms.append(1e3 * (time.perf_counter() - start))
ms, median = ms[2:], statistics.median(ms[2:])
peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6  # Linux counts in KiB
print(json.dumps({
    "peer": "pytorch", "version": torch.__version__ + (" compiled" if args.compile else ""), "B": args.B, "T": args.T,
    "threads": args.threads, "median_ms": round(median, 1), "min_ms": round(min(ms), 1),
    "tokens_per_s": round(1e3 * args.B * args.T / median, 1), "peak_mb": round(peak_mb, 1),
    "loss": round(loss.item(), 3)}))
