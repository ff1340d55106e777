#!/usr/bin/env python3
"""
make_async_dp.py: the numbers that check_replicas.py compares with: data parallelism in every mode.

    python3 dev/test/reference/make_async_dp.py [OUT_DIRECTORY]

The rules of --dp-mode, written once more in plain PyTorch and float64, with all sites in one process, one after the
other: nothing is sent, nothing overlaps, and nothing of the trainer is used but the order of its data, which is here a
second time too. The models are those of make_reference.py. Into reference/ beside this file go

    replicas_{gpt2,llama}.safetensors   the weights before the first step (--init)
    replicas.tokens                     an llm.c shard (--data), too small for more than one held-out block
    replicas.json                       for every case the trainer's arguments and its results:

        name, model, d, arguments       d: data-parallel replicas
        losses, norms                   of site 0 in each step (mode sync: of all), norm before clipping
        val                             {step: validation loss of the common point}
        weights                         {step: some weights of the common point; "probes" of the model says which}
        moved                           per tensor of the last checkpoint: Euclidean norm of its change since --init
        float32                         largest relative errors of the same rules in float32: loss, norm, val, weights
"""
import functools, json, math, os
import numpy as np
import torch

import make_reference as reference

# T tokens a sequence, V of them different. eps_adam as in make_reference.py: it keeps rounding from becoming steps.
# beta1 and beta2 are sums of few powers of two, so that 1 - beta is the same number in float32.
V, T, TOKENS, SEED = 61, 8, 1600, 7
MODELS = {
    name: {"arch": name, "layers": 4, "hidden": 16, "heads": 4, "kv_heads": kv, "ffn": ffn, "vocab": V, "seq": T,
           "tied": tied, "eps": 1e-5, "theta": theta}
    for name, kv, ffn, tied, theta in (("gpt2", 4, 40, 1, 0), ("llama", 2, 24, 0, 10000))
}
# The trainer's own defaults, so that cases also say what it does when it is not told; and what it is told.
UNSAID = {"dp-mode": "sync", "dc-lambda": 0.2, "local-steps": 32, "outer-lr": 0.7, "outer-momentum": 0.9,
          "sites": None, "optimizer": "adamw"}
SAID = {"global-batch": 16, "micro-batch": 2, "lr": 0.02, "min-lr": 0.004, "warmup": 3, "decay": "cosine",
        "weight-decay": 0.1, "beta1": 0.875, "beta2": 0.96875, "eps": 1e-3, "clip": 0, "steps": 12, "eval-every": 5,
        "eval-sequences": 7, "save-every": 0, "seed": SEED}
# Llama's gradient is touchier here: at twice this rate rounding grew ten times as large in some cases.
RATES = {"gpt2": {}, "llama": {"lr": 0.01, "min-lr": 0.002}}

# name: (model, d, what differs from SAID). The gradient's norm is between 1 and 3: clip 1.2 bites in most steps.
SGD = {"optimizer": "sgd", "lr": 0.05, "min-lr": 0.01}
CASES = {
    "sync 1": ("gpt2", 1, {}),
    "sync 2 clip": ("gpt2", 2, {"clip": 1.2}),
    "sync 4": ("gpt2", 4, {}),
    "sync 4 llama": ("llama", 4, {"clip": 1.2}),
    "sync 2 sgd clip": ("gpt2", 2, {"clip": 1.2, **SGD}),
    "dc-s3gd 1": ("gpt2", 1, {"dp-mode": "dc-s3gd", "clip": 1.2}),
    "dc-s3gd 2": ("gpt2", 2, {"dp-mode": "dc-s3gd", "save-every": 7}),
    "dc-s3gd 4 clip": ("gpt2", 4, {"dp-mode": "dc-s3gd", "clip": 1.2, "micro-batch": 1}),
    "dc-s3gd 4 lambda 0": ("gpt2", 4, {"dp-mode": "dc-s3gd", "dc-lambda": 0}),
    "dc-s3gd 2 sgd clip": ("gpt2", 2, {"dp-mode": "dc-s3gd", "dc-lambda": 0.2, "clip": 1.2, **SGD}),
    "dc-s3gd 4 sgd lambda 0": ("llama", 4, {"dp-mode": "dc-s3gd", "dc-lambda": 0, **SGD}),
    "dc-s3gd 2 llama clip": ("llama", 2, {"dp-mode": "dc-s3gd", "dc-lambda": 0.2, "clip": 1.2, "eval-every": 1}),
    "dc-s3gd 4 sites 2 clip": ("gpt2", 4, {"dp-mode": "dc-s3gd", "sites": 2, "clip": 1.2}),
    "diloco 2": ("gpt2", 2, {"dp-mode": "diloco", "local-steps": 3, "save-every": 7}),
    "diloco 4 clip": ("gpt2", 4, {"dp-mode": "diloco", "local-steps": 3, "clip": 1.2, "micro-batch": 1}),
    "diloco 1": ("gpt2", 1, {"dp-mode": "diloco", "local-steps": 4}),
    "diloco 2 no end": ("gpt2", 2, {"dp-mode": "diloco", "local-steps": 5, "outer-lr": 0.5, "outer-momentum": 0.8}),
    "diloco 2 all default": ("gpt2", 2, {"dp-mode": "diloco", "steps": 35, "global-batch": 4, "micro-batch": 1}),
    "diloco 2 sgd": ("gpt2", 2, {"dp-mode": "diloco", "local-steps": 3, **SGD}),
    "diloco 2 sgd H 1": ("gpt2", 2, {"dp-mode": "diloco", "local-steps": 1, "outer-lr": 1, "outer-momentum": 0, **SGD}),
    "diloco 4 sites 2": ("gpt2", 4, {"dp-mode": "diloco", "local-steps": 3, "sites": 2, "clip": 1.2}),
}

# ---- Data: the order of dataloader.h. A sequence of the run has a number; a keyed permutation takes it to its place --

M32, M64 = (1 << 32) - 1, (1 << 64) - 1

def philox(key, high, low):
    """Philox4x32-10 (Salmon et al. 2011), the counter's words from low to high."""
    k = [key & M32, key >> 32]
    c = [low & M32, low >> 32, high & M32, high >> 32]
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [b >> 32 ^ c[1] ^ k[0], b & M32, a >> 32 ^ c[3] ^ k[1], a & M32]
        k = [(k[0] + 0x9E3779B9) & M32, (k[1] + 0xBB67AE85) & M32]
    return c

def fnv1a(text):
    return functools.reduce(lambda h, byte: (h ^ byte) * 1099511628211 & M64, text.encode(), 14695981039346656037)

def permute(x, count, key):
    """Twelve Feistel rounds on 2 half bits, again until the result is below count."""
    half = max(1, -(-(count - 1).bit_length() // 2))
    mask = (1 << half) - 1
    while True:
        left, right = x >> half, x & mask
        for i in range(12):
            left, right = right, left ^ philox(key, i, right)[0] & mask
        x = left << half | right
        if x < count:
            return x

def training_sequence(tokens, n):
    count = (len(tokens) - len(tokens) // 20 - 1) // T  # the last 5 % validate
    words = philox(SEED, fnv1a("order of the sequences"), n // count)
    k = permute(n % count, count, words[1] << 32 | words[0])
    return tokens[k * T:k * T + T + 1]

def validation_sequences(tokens, most):
    held_out = tokens[len(tokens) - len(tokens) // 20:]
    return np.stack([held_out[k * T:k * T + T + 1] for k in range(min(most, (len(held_out) - 1) // T))])

# ---- The rules. A point in the space of the weights is one vector, of all tensors -----------------------------------

def tensors(c, x):
    """The tensors of a point, by name: copies, which lie in memory as if each were alone."""
    shapes = reference.shapes(c)
    parts = x.split([math.prod(shape) for shape in shapes.values()])
    return {name: part.view(shape).clone() for (name, shape), part in zip(shapes.items(), parts)}

def flat(named):
    return torch.cat([x.flatten() for x in named.values()])

def norm(c, x):
    return math.sqrt(sum(w.square().sum().item() for w in tensors(c, x).values()))

def rate(o, t):
    """Of step t, from 1."""
    if t <= o["warmup"]:
        return o["lr"] * t / o["warmup"]
    progress = min(1, (t - 1 - o["warmup"]) / max(1, o["steps"] - 1 - o["warmup"]))
    return o["min-lr"] + (o["lr"] - o["min-lr"]) * 0.5 * (1 + math.cos(math.pi * progress))

def gradient(c, x, sequences):
    """(loss, gradient) of the mean loss at x."""
    x = x.clone().requires_grad_(True)
    loss = reference.loss_of(c, tensors(c, x), sequences)
    loss.backward()
    return loss.item(), x.grad

def updated(o, decays, m, v, x, g, t):
    """Step t of a site's optimizer, from x. decays: 1 in what weight decay pulls, matrices. -> the new point"""
    lr = rate(o, t)
    if o["optimizer"] == "sgd":
        m.mul_(o["beta1"]).add_(g + o["weight-decay"] * decays * x)
        return x - lr * m
    m.mul_(o["beta1"]).add_((1 - o["beta1"]) * g)
    v.mul_(o["beta2"]).add_((1 - o["beta2"]) * g.square())
    mhat, vhat = m / (1 - o["beta1"]**t), v / (1 - o["beta2"]**t)
    return x - lr * o["weight-decay"] * decays * x - lr * mhat / (vhat.sqrt() + o["eps"])

def compensated(c, g, D, strength):
    """g + lambda g g D, lambda of each tensor such that the correction is `strength` times as long as its gradient."""
    new = tensors(c, g)
    for name, correction in tensors(c, g * g * D).items():
        size = correction.norm().item()
        if size > 0 and strength > 0:
            new[name] += strength * new[name].norm().item() / size * correction
    return flat(new)

def simulate(c, options, d, init, tokens, dtype):
    """-> losses and norms of site 0, validation losses and points of the common point, by steps"""
    o = {**UNSAID, **SAID, **options}
    mode, M = o["dp-mode"], 1 if o["dp-mode"] == "sync" else o["sites"] or d
    share = o["global-batch"] // M
    common = flat({name: torch.tensor(x, dtype=dtype) for name, x in init.items()})
    decays = flat({name: torch.full(x.shape, float(x.ndim > 1), dtype=dtype) for name, x in init.items()})
    theta, moments = [common] * M, torch.zeros(M, 2, len(common), dtype=dtype)
    flight = velocity = 0 * common  # dc-s3gd: the sum that is on its way; diloco: the outer momentum
    out = {"losses": [], "norms": [], "val": {}, "points": {}}
    for t in range(1, o["steps"] + 1):
        common = common + 1 / M * flight if mode == "dc-s3gd" else common
        for m in range(M):
            first = (t - 1) * o["global-batch"] + m * share
            sequences = np.stack([training_sequence(tokens, first + i) for i in range(share)])
            loss, g = gradient(c, theta[m], sequences)
            size, begin = norm(c, g), theta[m]
            if m == 0:
                out["losses"].append(loss)
                out["norms"].append(size)
            if mode == "dc-s3gd":  # with one site D is 0, but for a last bit, which lambda would make large
                g = compensated(c, g, common - theta[m], o["dc-lambda"]) if M > 1 else g
                begin = common
            g = g * (o["clip"] / (size + 1e-6) if 0 < o["clip"] < size else 1)
            theta[m] = updated(o, decays, *moments[m], begin, g, t)
        if mode == "sync":
            common = theta[0]
        if mode == "dc-s3gd":
            flight = sum(x - common for x in theta)
        if mode == "diloco" and t % o["local-steps"] == 0:  # Nesterov's step of the common point
            estimate = 1 / M * sum(common - x for x in theta)
            velocity = o["outer-momentum"] * velocity + estimate
            common = common - o["outer-lr"] * (estimate + o["outer-momentum"] * velocity)
            theta = [common] * M
        point = common + 1 / M * flight if mode == "dc-s3gd" else common
        if t == o["steps"] or t % o["eval-every"] == 0:
            with torch.no_grad():
                sequences = validation_sequences(tokens, o["eval-sequences"])
                out["val"][t] = reference.loss_of(c, tensors(c, point), sequences).item()
        if t == o["steps"] or (o["save-every"] and t % o["save-every"] == 0):
            out["points"][t] = tensors(c, point)
    return out

def relative_errors(a, b, start):
    """Of run a against b: losses, norms, validation, weights (relative to the root mean square of their change)."""
    worst = lambda x, y: max(abs(u / v - 1) for u, v in zip(x, y))
    weights = max(((x[n].double() - y[n]).abs().max() / (y[n] - start[n]).square().mean().sqrt()).item()
                  for x, y in ((a["points"][t], b["points"][t]) for t in b["points"]) for n in y)
    return [worst(a["losses"], b["losses"]), worst(a["norms"], b["norms"]),
            worst(a["val"].values(), b["val"].values()), weights]

# ---- Files ----------------------------------------------------------------------------------------------------------

def make_tokens():
    """A walk through the vocabulary, mostly to the token's two favourites, so that there is something to learn."""
    random = np.random.RandomState(1911)  # the legacy generator: its numbers never change
    favourites, tokens = random.randint(0, V, (V, 2)), [0]
    while len(tokens) < TOKENS:
        u = random.uniform()
        tokens.append(favourites[tokens[-1], 0] if u < 0.5 else favourites[tokens[-1], 1] if u < 0.75
                      else int(V * random.uniform() ** 2))
    return np.array(tokens, dtype=np.int64)

def probes_of(init, random):
    """Weights that are compared, (name, index): one of a vector, three of a matrix."""
    drawn = {name: random.choice(x.size, 1 if x.ndim == 1 else 3, replace=False) for name, x in init.items()}
    return [(name, int(i)) for name, indices in drawn.items() for i in sorted(indices)]

def arguments_of(c, options):
    sizes = ["layers", "hidden", "heads", *(["kv-heads"] if c["arch"] == "llama" else []), "ffn", "seq", "vocab"]
    unused = ("beta2", "eps") if options.get("optimizer") == "sgd" else ()
    said = {"arch": c["arch"], **{name: c[name.replace("-", "_")] for name in sizes},
            **{key: value for key, value in SAID.items() if key not in unused}, **options, "sample-every": 0}
    return [word for key, value in said.items() for word in ("--" + key, str(value))]

def numbers(some):
    return [float(f"{x:.11g}") for x in some]

def case_of(name, inits, probes, tokens):
    model, d, options = CASES[name]
    options = {**RATES[model], **options}
    c, init = MODELS[model], inits[model]
    out = simulate(c, options, d, init, tokens, torch.float64)
    start = {n: torch.tensor(x).double() for n, x in init.items()}
    errors = relative_errors(simulate(c, options, d, init, tokens, torch.float32), out, start)
    print(f"{name:25s} float32 errors " + "".join(f"{e:9.1e}" for e in errors), flush=True)
    last = list(out["points"].values())[-1]
    return {"name": name, "model": model, "d": d, "arguments": arguments_of(c, options),
            "losses": numbers(out["losses"]), "norms": numbers(out["norms"]),
            "val": dict(zip(out["val"], numbers(out["val"].values()))),
            "weights": {t: numbers(p[n].flatten()[i].item() for n, i in probes[model])
                        for t, p in out["points"].items()},
            "moved": numbers((last[n] - start[n]).norm().item() for n in start),
            "float32": [float(f"{e:.2g}") for e in errors]}

def main():
    directory = reference.directory(__doc__)
    tokens = make_tokens()
    random = np.random.RandomState(2019)
    inits = {name: reference.initial(c, random) for name, c in MODELS.items()}
    probes = {name: probes_of(init, random) for name, init in inits.items()}
    models = {name: {"init": f"replicas_{name}.safetensors", "probes": probes[name],
                     "tensors": [[n, x.size] for n, x in init.items()]} for name, init in inits.items()}
    cases = [case_of(name, inits, probes, tokens) for name in CASES]

    for name, init in inits.items():
        reference.write_safetensors(os.path.join(directory, f"replicas_{name}.safetensors"), init, {"format": "pt"})
    with open(os.path.join(directory, "replicas.tokens"), "wb") as file:
        file.write(np.array([20240520, 1, len(tokens), *[0] * 253], "<i4").tobytes() + tokens.astype("<u2").tobytes())
    compact = lambda x: json.dumps(x, separators=(",", ":"))
    with open(os.path.join(directory, "replicas.json"), "w") as file:
        file.write(compact({"tokens": "replicas.tokens", "models": models})[:-1] + ',"cases":[\n' +
                   ",\n".join(map(compact, cases)) + "\n]}\n")

if __name__ == "__main__":
    main()
