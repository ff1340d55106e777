#!/usr/bin/env python3
"""
make_reference.py: the numbers that the whole-model test compares with.

    python3 dev/test/reference/make_reference.py [OUT_DIRECTORY]

Six small models, written here in plain PyTorch after their papers and with the tensor names and shapes of Hugging
Face's checkpoints, trained for ten steps of AdamW in float64: what is left between these numbers and ours is our own
float32 error. One safetensors file each in reference/ beside this file, with

    __metadata__   the sizes and the optimizer's settings, as strings ("clip": "0" = the gradient is never clipped)
    init.NAME      F32  the weights before the first step
    tokens         I32  (steps, B, T + 1): step s reads tokens[s, :, :-1] and predicts tokens[s, :, 1:]
    logits         F32  (B, T, V), first step
    grad.NAME      F32  gradient of the mean loss, first step, before clipping
    losses         F64  (steps), mean over B T tokens, before each update
    grad_norms     F64  (steps), over all parameters, before clipping
    final.NAME     F32  the weights after the last step

The same machine writes the same bytes every time. check_transformers.py compares the trainer's logits with Hugging
Face's own models.
"""
import json, math, os, struct, sys
import numpy as np
import torch

# Sizes that nothing divides: V is prime, the head sizes are 8, 7, 8, 6, and seq, the number of positions, is above T in
# two of them. One clip acts on every step, one on the first three only.
# eps_adam is larger than usual: the gradient of GPT-2's key bias is zero (it shifts all scores of a query equally, and
# softmax does not see that), and Adam with a tiny eps would turn its rounding noise into whole steps. A large eps also
# lets clipping show: AdamW divides any common scale of the gradients out again, but for eps.
KEYS = ("arch", "layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "seq", "tied", "B", "T", "eps", "theta",
        "lr", "beta1", "beta2", "eps_adam", "weight_decay", "clip", "steps")
MODELS = {
    "gpt2_tied": ("gpt2", 2, 32, 4, 4, 76, 61, 16, 1, 2, 16, 1e-5, 0, 1e-2, 0.9, 0.95, 1e-3, 0.1, 0, 10),
    "gpt2_untied": ("gpt2", 2, 28, 4, 4, 100, 61, 19, 0, 3, 13, 1e-5, 0, 1e-2, 0.9, 0.999, 1e-3, 0.1, 2, 10),
    "llama_grouped": ("llama", 2, 32, 4, 2, 44, 61, 16, 0, 2, 16, 1e-5, 10000, 1e-2, 0.9, 0.95, 1e-3, 0.1, 0, 10),
    "llama_tied": ("llama", 3, 24, 4, 1, 44, 61, 17, 1, 3, 11, 1e-5, 10000, 1e-2, 0.8, 0.99, 1e-3, 0.2, 0.5, 10),
    # CAAT-Nets: also N, the tensor ranks that they are made for, and p, the part of the channels that these share
    "gpt2_caat": ("gpt2", 2, 32, 4, 4, 76, 61, 16, 1, 2, 16, 1e-5, 0, 1e-2, 0.9, 0.95, 1e-3, 0.1, 0, 10, 4, 0.3),
    "llama_caat": ("llama", 2, 32, 4, 2, 44, 61, 16, 0, 2, 16, 1e-5, 10000, 1e-2, 0.9, 0.95, 1e-3, 0.1, 2, 10, 2, 0.75),
}
CAAT_KEYS = ("sync_ranks", "sync")

# ---- The models. c is the configuration, p the parameters by name, x the residual stream (B, T, C) ------------------

def shapes(c):
    """Name and shape of every parameter, in the order of the model."""
    V, C, F, L = c["vocab"], c["hidden"], c["ffn"], c["layers"]
    kv = C // c["heads"] * c["kv_heads"]  # channels of all keys, and of all values
    if c["arch"] == "gpt2":  # Conv1D: (in, out)
        s = {"transformer.wte.weight": (V, C), "transformer.wpe.weight": (c["seq"], C)}
        for i in range(L):
            block = {"ln_1.weight": (C,), "ln_1.bias": (C,), "attn.c_attn.weight": (C, 3 * C),
                     "attn.c_attn.bias": (3 * C,), "attn.c_proj.weight": (C, C), "attn.c_proj.bias": (C,),
                     "ln_2.weight": (C,), "ln_2.bias": (C,), "mlp.c_fc.weight": (C, F), "mlp.c_fc.bias": (F,),
                     "mlp.c_proj.weight": (F, C), "mlp.c_proj.bias": (C,)}
            s.update({f"transformer.h.{i}.{name}": shape for name, shape in block.items()})
        s.update({"transformer.ln_f.weight": (C,), "transformer.ln_f.bias": (C,)})
    else:  # Linear: (out, in)
        s = {"model.embed_tokens.weight": (V, C)}
        for i in range(L):
            block = {"input_layernorm.weight": (C,), "self_attn.q_proj.weight": (C, C),
                     "self_attn.k_proj.weight": (kv, C), "self_attn.v_proj.weight": (kv, C),
                     "self_attn.o_proj.weight": (C, C), "post_attention_layernorm.weight": (C,),
                     "mlp.gate_proj.weight": (F, C), "mlp.up_proj.weight": (F, C), "mlp.down_proj.weight": (C, F)}
            s.update({f"model.layers.{i}.{name}": shape for name, shape in block.items()})
        s["model.norm.weight"] = (C,)
    if not c["tied"]:
        s["lm_head.weight"] = (V, C)
    return s

def heads(x, n):
    """(B, T, n HS) -> (B, n, T, HS)"""
    B, T, C = x.shape
    return x.view(B, T, n, C // n).transpose(1, 2)

def attention(q, k, v):
    """softmax(q k^T / sqrt(HS)) v with a causal mask; query head h reads key/value head h NKV / NH. -> (B, T, C)"""
    B, NH, T, HS = q.shape
    k, v = (z.repeat_interleave(NH // z.shape[1], dim=1) for z in (k, v))
    unseen = torch.ones(T, T, dtype=torch.bool).triu(1)
    scores = (q @ k.transpose(2, 3) / math.sqrt(HS)).masked_fill(unseen, -math.inf)
    return (scores.softmax(-1) @ v).transpose(1, 2).reshape(B, T, NH * HS)

def layer_norm(x, weight, bias, eps):
    d = x - x.mean(-1, keepdim=True)
    return d / torch.sqrt(d.square().mean(-1, keepdim=True) + eps) * weight + bias

def rms_norm(x, weight, eps):
    return x / torch.sqrt(x.square().mean(-1, keepdim=True) + eps) * weight

def gelu(x):
    """The tanh form (Hendrycks and Gimpel 2016), which GPT-2 uses."""
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))

def rope(x, theta):
    """Rotates the pair (x[i], x[i + HS/2]) of position t by the angle t theta^(-2i / HS) (Su et al. 2021)."""
    T, HS = x.shape[-2:]
    frequency = theta ** (-torch.arange(0, HS, 2, dtype=x.dtype) / HS)
    angle = torch.arange(T, dtype=x.dtype)[:, None] * frequency  # (T, HS/2)
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), -1)

def gpt2_branches(c, p, i, r, N):
    """What rank r of N computes in block i: two functions, from its own stream x to its partial sum, and their
    biases."""
    C = c["hidden"]
    w = lambda name: p[f"transformer.h.{i}.{name}"]
    mine = lambda n: slice(r * n // N, (r + 1) * n // N)

    def attend(x):
        y = layer_norm(x, w("ln_1.weight"), w("ln_1.bias"), c["eps"])
        mine_of_qkv = lambda name: torch.cat([part[..., mine(C)] for part in w(name).chunk(3, dim=-1)], -1)
        qkv = y @ mine_of_qkv("attn.c_attn.weight") + mine_of_qkv("attn.c_attn.bias")
        q, k, v = (heads(z, c["heads"] // N) for z in qkv.chunk(3, dim=-1))
        return attention(q, k, v) @ w("attn.c_proj.weight")[mine(C)]

    def mlp(x):
        y = layer_norm(x, w("ln_2.weight"), w("ln_2.bias"), c["eps"])
        F = mine(c["ffn"])
        return gelu(y @ w("mlp.c_fc.weight")[:, F] + w("mlp.c_fc.bias")[F]) @ w("mlp.c_proj.weight")[F]
    return (attend, w("attn.c_proj.bias")), (mlp, w("mlp.c_proj.bias"))

def llama_branches(c, p, i, r, N):
    C = c["hidden"]
    w = lambda name: p[f"model.layers.{i}.{name}.weight"]
    mine = lambda n: slice(r * n // N, (r + 1) * n // N)

    def attend(x):
        y = rms_norm(x, w("input_layernorm"), c["eps"])
        kv = C // c["heads"] * c["kv_heads"]
        q = heads(y @ w("self_attn.q_proj")[mine(C)].T, c["heads"] // N)
        k = heads(y @ w("self_attn.k_proj")[mine(kv)].T, c["kv_heads"] // N)
        v = heads(y @ w("self_attn.v_proj")[mine(kv)].T, c["kv_heads"] // N)
        return attention(rope(q, c["theta"]), rope(k, c["theta"]), v) @ w("self_attn.o_proj")[:, mine(C)].T

    def mlp(x):
        y, F = rms_norm(x, w("post_attention_layernorm"), c["eps"]), mine(c["ffn"])
        gate = y @ w("mlp.gate_proj")[F].T
        return (gate * torch.sigmoid(gate) * (y @ w("mlp.up_proj")[F].T)) @ w("mlp.down_proj")[:, F].T
    return (attend, 0), (mlp, 0)

def logits_of(c, p, tokens):
    """
    (B, T) -> (B, T, V): embedding, blocks of two branches onto the residual stream, a last norm, the head. A CAAT-Net
    (Lamprecht et al. 2025) is N ranks with a stream each, of which they share the first S channels; else N = 1, S = C.
    """
    N, C, V, gpt = c.get("sync_ranks", 1), c["hidden"], c["vocab"], c["arch"] == "gpt2"
    S, rows = int(C * c.get("sync", 1)), -(-V // N)
    tokens = torch.as_tensor(tokens).long()
    wte = p["transformer.wte.weight" if gpt else "model.embed_tokens.weight"]
    x = wte[tokens] + (p["transformer.wpe.weight"][: tokens.shape[1]] if gpt else 0)
    streams = [x] * N
    for i in range(c["layers"]):
        of_rank = [(gpt2_branches if gpt else llama_branches)(c, p, i, r, N) for r in range(N)]
        for branch in range(2):
            parts = [of_rank[r][branch][0](streams[r]) for r in range(N)]
            shared = sum(part[..., :S] for part in parts)
            kept = [torch.cat((shared, math.sqrt(N) * part[..., S:]), -1) for part in parts]
            streams = [streams[r] + (kept[r] + of_rank[r][branch][1]) for r in range(N)]
    head = wte if c["tied"] else p["lm_head.weight"]
    norm = ((lambda x: layer_norm(x, p["transformer.ln_f.weight"], p["transformer.ln_f.bias"], c["eps"])) if gpt else
            (lambda x: rms_norm(x, p["model.norm.weight"], c["eps"])))
    return torch.cat([norm(streams[r]) @ head[r * rows:(r + 1) * rows].T for r in range(N)], -1)

def loss_of(c, p, tokens):
    """Mean cross entropy of the next token."""
    log_probabilities = logits_of(c, p, tokens[:, :-1]).log_softmax(-1)
    targets = torch.as_tensor(tokens[:, 1:]).long()
    return -log_probabilities.gather(-1, targets[..., None]).mean()

# ---- Training ------------------------------------------------------------------------------------------------------

def initial(c, random):
    """Large enough that every gradient stands far above rounding; float32 values, the same on both sides."""
    def one(name, shape):
        norm = "ln_" in name or "norm" in name
        mean, std = (1, 0.2) if norm and name.endswith("weight") else (0, 0.2)
        return (mean + std * random.standard_normal(shape)).astype(np.float32)
    return {name: one(name, shape) for name, shape in shapes(c).items()}

def train(c, init, tokens):
    """All steps. Returns (final weights, first gradients, losses, gradient norms)."""
    p = {name: torch.tensor(w, dtype=torch.float64, requires_grad=True) for name, w in init.items()}
    # Weight decay pulls matrices and embeddings, not biases and norms, towards zero.
    groups = [{"params": [w for w in p.values() if w.dim() >= 2], "weight_decay": c["weight_decay"]},
              {"params": [w for w in p.values() if w.dim() < 2], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=c["lr"], betas=(c["beta1"], c["beta2"]), eps=c["eps_adam"])
    losses, norms, first = [], [], {}
    for step in range(c["steps"]):
        optimizer.zero_grad()
        loss = loss_of(c, p, tokens[step])
        loss.backward()
        first = first or {name: w.grad.numpy().copy() for name, w in p.items()}
        norm = torch.nn.utils.clip_grad_norm_(p.values(), c["clip"] or math.inf)
        losses.append(loss.item())
        norms.append(norm.item())
        optimizer.step()
    return {name: w.detach().numpy() for name, w in p.items()}, first, np.array(losses), np.array(norms)

# ---- Files ----------------------------------------------------------------------------------------------------------

def write_safetensors(path, tensors, metadata):
    """8 bytes: length of the header; the header, JSON; the data, 8-byte numbers first, so that all are aligned."""
    codes = {"float64": "F64", "float32": "F32", "int32": "I32"}
    tensors = dict(sorted(tensors.items(), key=lambda item: -item[1].itemsize))
    header, offset = {"__metadata__": metadata}, 0
    for name, t in tensors.items():
        header[name] = {"dtype": codes[str(t.dtype)], "shape": t.shape, "data_offsets": [offset, offset + t.nbytes]}
        offset += t.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for t in tensors.values():
            file.write(t.astype(t.dtype.newbyteorder("<")).tobytes())

def make(name, values, seed, directory):
    c = dict(zip(KEYS + CAAT_KEYS, values))
    random = np.random.RandomState(seed)  # the legacy generator: its numbers never change
    init = initial(c, random)
    skewed = random.uniform(size=(c["steps"], c["B"], c["T"] + 1)) ** 2  # low tokens more often: there is much to learn
    tokens = (c["vocab"] * skewed).astype(np.int32)
    final, grads, losses, norms = train(c, init, tokens)
    logits = logits_of(c, {n: torch.tensor(w).double() for n, w in init.items()}, tokens[0, :, :-1]).numpy()
    print(f"{name}: loss {losses[0]:.4f} -> {losses[-1]:.4f}, gradient norm {norms.min():.2f} .. {norms.max():.2f}")

    f32 = lambda prefix, tensors: {f"{prefix}.{n}": t.astype(np.float32) for n, t in tensors.items()}
    write_safetensors(os.path.join(directory, name + ".safetensors"),
                      {"tokens": tokens, "logits": logits.astype(np.float32), "losses": losses, "grad_norms": norms,
                       **f32("init", init), **f32("grad", grads), **f32("final", final)},
                      {key: str(value) for key, value in c.items()})

def directory(usage):
    """Where to write to: the argument, or this folder. One thread from here on: one order of additions."""
    if len(sys.argv) > 2 or any(a.startswith("-") for a in sys.argv[1:]):
        sys.exit(usage.strip())
    torch.set_num_threads(1)
    return sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__))

def main():
    out = directory(__doc__)
    for seed, (name, values) in enumerate(MODELS.items()):
        make(name, values, seed, out)

if __name__ == "__main__":
    main()
