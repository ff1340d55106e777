#!/usr/bin/env python3
"""
make_async_dp.py: the numbers that check_replicas.py compares with: data parallelism in every mode.

    python3 dev/test/reference/make_async_dp.py [OUT_DIRECTORY]

The rules of --dp-mode, written once more in plain PyTorch and float64, with all sites in one process, one after the
other: nothing is sent, nothing overlaps, and nothing of the trainer is used but the order of its data, which is here a
second time too. The models are those of make_reference.py. Into reference/ beside this file go

    replicas_gpt2.safetensors, replicas_llama.safetensors    the weights before the first step (--init)
    replicas.tokens                                          an llm.c shard (--data), too few for more than one held-out
                                                             block: the last 5 % validate
    replicas.json                                            for every case the trainer's arguments and its results:

        name, model, d, arguments       d: data-parallel replicas
        losses, norms                   of site 0 in each step (mode sync: of all), norm before clipping
        val                             {step: validation loss of the common point}
        weights                         {step: some weights of the common point; "probes" of the model says which}
        moved                           per tensor of the last checkpoint: Euclidean norm of its change since --init
        float32                         largest relative errors of the same rules in float32: loss, norm, val, weights

The script checks itself, in runs of its own: identities that must hold between modes; and every case against the same
case in float32, which says what error a float32 program may show.
"""
import json, math, os, sys, types
import numpy as np
import torch

HERE = os.path.dirname(os.path.abspath(__file__))


def load_models():
    """make_reference.py as a module, without its last line, which would run it."""
    path = os.path.join(HERE, "make_reference.py")
    module = types.ModuleType("make_reference")
    exec(compile(open(path).read().rsplit("\nmain()\n", 1)[0], path, "exec"), module.__dict__)
    return module


reference = load_models()

# T tokens a sequence, V of them different. eps_adam as in make_reference.py: it keeps rounding from becoming steps.
# beta1 and beta2 are sums of few powers of two, so that 1 - beta is the same number in float32.
V, T, TOKENS, SEED = 61, 8, 1600, 7
MODELS = {
    "gpt2": {"arch": "gpt2", "layers": 4, "hidden": 16, "heads": 4, "kv_heads": 4, "ffn": 40, "vocab": V, "seq": T,
             "tied": 1, "eps": 1e-5, "theta": 0},
    "llama": {"arch": "llama", "layers": 4, "hidden": 16, "heads": 4, "kv_heads": 2, "ffn": 24, "vocab": V, "seq": T,
              "tied": 0, "eps": 1e-5, "theta": 10000},
}
DEFAULTS = {"dp-mode": "sync", "dc-lambda": 0.2, "local-steps": 32, "outer-lr": 0.7, "outer-momentum": 0.9,
            "sites": None, "optimizer": "adamw",
            "global-batch": 16, "micro-batch": 2, "lr": 0.02, "min-lr": 0.004, "warmup": 3, "decay": "cosine",
            "weight-decay": 0.1, "beta1": 0.875, "beta2": 0.96875, "eps": 1e-3, "clip": 0,
            "steps": 12,
            "eval-every": 5, "eval-sequences": 7, "save-every": 0, "seed": SEED}
# The trainer's own defaults of these are ours, so that cases also say what it does when it is not told.
UNSAID = ("dp-mode", "dc-lambda", "local-steps", "outer-lr", "outer-momentum", "sites", "optimizer")

# Llama's gradient is touchier here: at twice this rate rounding grew ten times as large in some cases.
LLAMA_RATE = {"lr": 0.01, "min-lr": 0.002}

# name: (model, d, what differs from DEFAULTS). The gradient's norm is between 1 and 3: clip 1.2 bites in most steps.
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


# ---------------------------------------------------------------------------------------------------------------------
# Data: the order of dataloader.h. A sequence of the run has a number; a keyed permutation takes it to its place.

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
    h = 14695981039346656037
    for byte in text.encode():
        h = (h ^ byte) * 1099511628211 & M64
    return h


def permute(x, count, key):
    """Twelve Feistel rounds on 2 half bits, again until the result is below count."""
    half = 1
    while (count - 1) >> 2 * half:
        half += 1
    mask = (1 << half) - 1
    while True:
        left, right = x >> half, x & mask
        for i in range(12):
            left, right = right, left ^ philox(key, i, right)[0] & mask
        x = left << half | right
        if x < count:
            return x


class Data:
    """The stream of tokens; its last 5 %, one block, are held out for validation."""

    def __init__(self, tokens, seed):
        self.tokens, self.seed = tokens, seed
        self.end = len(tokens) - len(tokens) // 20

    def training(self, n):
        count = (self.end - 1) // T
        words = philox(self.seed, fnv1a("order of the sequences"), n // count)
        k = permute(n % count, count, words[1] << 32 | words[0])
        return self.tokens[k * T:k * T + T + 1]

    def validation(self, most):
        count = min(most, (len(self.tokens) - self.end - 1) // T)
        return np.stack([self.tokens[self.end + k * T:self.end + k * T + T + 1] for k in range(count)])


# ---------------------------------------------------------------------------------------------------------------------
# One site: its gradient and its optimizer. A point in the space of the weights is a dictionary, tensors by name.

def rate(o, t):
    """Of step t, from 1."""
    if t <= o["warmup"]:
        return o["lr"] * t / o["warmup"]
    progress = min(1, (t - 1 - o["warmup"]) / max(1, o["steps"] - 1 - o["warmup"]))
    return o["min-lr"] + (o["lr"] - o["min-lr"]) * 0.5 * (1 + math.cos(math.pi * progress))


def norm(x):
    return math.sqrt(sum(w.square().sum().item() for w in x.values()))


def gradient(c, w, sequences):
    """(loss, gradient) of the mean loss at w."""
    p = {name: x.clone().requires_grad_(True) for name, x in w.items()}
    loss = reference.loss_of(c, p, sequences)
    loss.backward()
    return loss.item(), {name: x.grad for name, x in p.items()}


def clip_factor(o, size):
    return o["clip"] / (size + 1e-6) if o["clip"] > 0 and size > o["clip"] else 1


class Optimizer:
    """The moments of a site."""

    def __init__(self, o, w):
        self.o = o
        self.m = {name: torch.zeros_like(x) for name, x in w.items()}
        self.v = {name: torch.zeros_like(x) for name, x in w.items()}

    def step(self, w, g, lr, number):
        """One update from w; number: of AdamW's step, from 1. -> the new point"""
        o, new = self.o, {}
        for name, x in w.items():
            decay, m, v = o["weight-decay"] if x.dim() > 1 else 0, self.m[name], self.v[name]
            if o["optimizer"] == "sgd":
                m.mul_(o["beta1"]).add_(g[name] + decay * x)
                new[name] = x - lr * m
                continue
            m.mul_(o["beta1"]).add_((1 - o["beta1"]) * g[name])
            v.mul_(o["beta2"]).add_((1 - o["beta2"]) * g[name].square())
            mhat, vhat = m / (1 - o["beta1"]**number), v / (1 - o["beta2"]**number)
            new[name] = x - lr * decay * x - lr * mhat / (vhat.sqrt() + o["eps"])
        return new


def compensated(g, D, strength):
    """g + lambda g g D, lambda of each tensor such that the correction is `strength` times as long as its gradient."""
    new = {}
    for name, x in g.items():
        correction = x * x * D[name]
        size = correction.norm().item()
        new[name] = x + strength * x.norm().item() / size * correction if size > 0 and strength > 0 else x
    return new


def scaled(x, factor):
    return {name: factor * w for name, w in x.items()}


def add(*points):
    return {name: sum(p[name] for p in points) for name in points[0]}


def minus(a, b):
    return {name: a[name] - b[name] for name in a}


def mean(points):
    return scaled(add(*points), 1 / len(points))


# ---- The modes. A mode has step(t), which returns (loss, norm), and common(), a point -------------------------------

class Run:
    def __init__(self, c, o, d, init, data, dtype):
        self.c, self.o, self.data = c, o, data
        self.M = 1 if o["dp-mode"] == "sync" else o["sites"] or d
        self.w1 = {name: torch.tensor(x, dtype=dtype) for name, x in init.items()}
        self.copy = lambda: {name: x.clone() for name, x in self.w1.items()}

    def site_gradient(self, m, t, w):
        """(loss, gradient) of site m in step t: it has global_batch / M sequences, in the order of the sites."""
        share = self.o["global-batch"] // self.M
        first = (t - 1) * self.o["global-batch"] + m * share
        return gradient(self.c, w, np.stack([self.data.training(first + i) for i in range(share)]))


class Sync(Run):
    def __init__(self, *a):
        super().__init__(*a)
        self.w, self.optimizer = self.copy(), Optimizer(self.o, self.w1)

    def step(self, t):
        loss, g = self.site_gradient(0, t, self.w)
        size = norm(g)
        self.w = self.optimizer.step(self.w, scaled(g, clip_factor(self.o, size)), rate(self.o, t), t)
        return loss, size

    def common(self):
        return self.w


class DcS3gd(Run):
    def __init__(self, *a):
        super().__init__(*a)
        self.c_, self.flight = self.copy(), None
        self.theta = [self.copy() for _ in range(self.M)]
        self.optimizers = [Optimizer(self.o, self.w1) for _ in range(self.M)]
        self.strength = self.o["dc-lambda"]
        self.largest_sum_of_D = self.largest_D = 0

    def arrive(self):
        """c += S / M of the sum in flight."""
        if self.flight is not None:
            self.c_ = add(self.c_, scaled(self.flight, 1 / self.M))
        self.flight = None

    def step(self, t):
        results = [self.site_gradient(m, t, self.theta[m]) for m in range(self.M)]
        self.arrive()
        D = [minus(self.c_, self.theta[m]) for m in range(self.M)]
        self.largest_sum_of_D = max(self.largest_sum_of_D, norm(add(*D)))
        self.largest_D = max(self.largest_D, norm(D[0]))
        for m, (_, g) in enumerate(results):
            # with M = 1, D is 0; but c + (theta - c) may not be theta to the last bit, and lambda would make it large
            gt = compensated(g, D[m], self.strength) if self.M > 1 else g
            gt = scaled(gt, clip_factor(self.o, norm(g)))
            self.theta[m] = self.optimizers[m].step(self.c_, gt, rate(self.o, t), t)
        self.flight = add(*[minus(self.theta[m], self.c_) for m in range(self.M)])
        return results[0][0], norm(results[0][1])

    def common(self):
        return self.c_ if self.flight is None else add(self.c_, scaled(self.flight, 1 / self.M))


class Diloco(Run):
    def __init__(self, *a):
        super().__init__(*a)
        self.theta = [self.copy() for _ in range(self.M)]
        self.optimizers = [Optimizer(self.o, self.w1) for _ in range(self.M)]
        self.c_, self.v = self.copy(), scaled(self.w1, 0)

    def step(self, t):
        o, b = self.o, self.o["outer-momentum"]
        results = [self.site_gradient(m, t, self.theta[m]) for m in range(self.M)]
        for m, (_, g) in enumerate(results):
            g = scaled(g, clip_factor(o, norm(g)))
            self.theta[m] = self.optimizers[m].step(self.theta[m], g, rate(o, t), t)
        if t % o["local-steps"] == 0:  # Nesterov's step of c
            estimate = mean([minus(self.c_, theta) for theta in self.theta])
            self.v = add(scaled(self.v, b), estimate)
            self.c_ = minus(self.c_, scaled(add(estimate, scaled(self.v, b)), o["outer-lr"]))
            self.theta = [dict(self.c_) for _ in range(self.M)]
        return results[0][0], norm(results[0][1])

    def common(self):
        return self.c_


RULES = {"sync": Sync, "dc-s3gd": DcS3gd, "diloco": Diloco}


def simulate(c, options, d, init, data, dtype=torch.float64):
    """-> dictionary of what came out, and the run"""
    o = {**DEFAULTS, **options}
    run = RULES[o["dp-mode"]](c, o, d, init, data, dtype)
    out = {"losses": [], "norms": [], "val": {}, "points": {}}
    for t in range(1, o["steps"] + 1):
        loss, size = run.step(t)
        out["losses"].append(loss)
        out["norms"].append(size)
        if t == o["steps"] or (o["eval-every"] and t % o["eval-every"] == 0):
            with torch.no_grad():
                out["val"][t] = reference.loss_of(c, run.common(), data.validation(o["eval-sequences"])).item()
        if t == o["steps"] or (o["save-every"] and t % o["save-every"] == 0):
            out["points"][t] = {name: x.clone() for name, x in run.common().items()}
    return out, run


# ---- Checks of the simulation itself --------------------------------------------------------------------------------

def differ(a, b):
    """Largest relative difference of norms, validation losses and final weights of two runs."""
    x, y = a["points"][max(a["points"])], b["points"][max(b["points"])]
    return max([norm(minus(x, y)) / norm(y)] + [abs(a["val"][t] / b["val"][t] - 1) for t in a["val"]])


def identities(inits, data):
    bad = 0

    def check(what, error, bound=1e-12):
        nonlocal bad
        bad += not error <= bound
        print(f"    {'ok  ' if error <= bound else 'FAIL'} {what}: {error:.1e}, bound {bound:.0e}")

    def same(what, a, b, model="gpt2"):
        runs = [simulate(MODELS[model], options, d, inits[model], data)[0] for d, options in (a, b)]
        check(what, differ(*runs))

    plain = {"steps": 7}
    for lam in (0, 0.2):
        out, run = simulate(MODELS["gpt2"], {"dp-mode": "dc-s3gd", "dc-lambda": lam, **plain}, 4, inits["gpt2"], data)
        check(f"dc-s3gd, lambda {lam}: sum of D / |D|", run.largest_sum_of_D / run.largest_D)
    g, D = ({name: torch.randn(x.shape, dtype=torch.float64) for name, x in inits["llama"].items()} for _ in range(2))
    gt = compensated(g, D, 0.2)
    check("|correction| / |g| is lambda of every tensor",
          max(abs((gt[n] - g[n]).norm().item() / g[n].norm().item() / 0.2 - 1) for n in g))
    same("sync on 4 replicas is sync on 1", (4, plain), (1, plain))
    same("dc-s3gd with M = 1 is sync", (1, {"dp-mode": "dc-s3gd", "clip": 1.2, **plain}), (1, {"clip": 1.2, **plain}))
    same("dc-s3gd with one site of 4 is sync", (4, {"dp-mode": "dc-s3gd", "sites": 1, **plain}), (1, plain))
    one = {"dp-mode": "diloco", "local-steps": 1, "outer-lr": 1, "outer-momentum": 0}
    same("diloco, H = 1, eta = 1, b = 0, sgd is sync sgd", (4, {**one, **plain, **SGD}), (4, {**plain, **SGD}))
    same("diloco, the same, M = 1, adamw is sync", (1, {**one, "clip": 1.2, **plain}), (1, {"clip": 1.2, **plain}))
    some = {"dp-mode": "diloco", "local-steps": 3, **plain}
    same("diloco, 4 replicas in 2 sites, is 2 replicas", (4, {"sites": 2, **some}), (2, some))
    return bad == 0


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
    return np.array(tokens, dtype=np.uint16)


def probes_of(init, random):
    """Weights that are compared, (name, index): one of a vector, three of a matrix."""
    return [(name, int(i)) for name, x in init.items() for i in sorted(random.choice(x.size, 1 if x.ndim == 1 else 3,
                                                                                     replace=False))]


def arguments_of(c, options):
    words = ["--arch", c["arch"]]
    for key, name in (("layers", "layers"), ("hidden", "hidden"), ("heads", "heads"), ("kv_heads", "kv-heads"),
                      ("ffn", "ffn"), ("seq", "seq"), ("vocab", "vocab")):
        if key != "kv_heads" or c["arch"] == "llama":
            words += ["--" + name, str(c[key])]
    unused = ("beta2", "eps") if options.get("optimizer") == "sgd" else ()
    for key, value in {**{k: v for k, v in DEFAULTS.items() if k not in UNSAID + unused}, **options}.items():
        words += ["--" + key, str(value)]
    return words + ["--sample-every", "0"]


def number(x):
    return float(f"{x:.11g}")


def main():
    if len(sys.argv) > 2 or any(a.startswith("-") for a in sys.argv[1:]):
        sys.exit(__doc__.strip())
    directory = sys.argv[1] if len(sys.argv) > 1 else HERE
    os.makedirs(directory, exist_ok=True)
    torch.set_num_threads(1)  # one order of additions
    torch.manual_seed(1)
    tokens = make_tokens()
    data = Data(tokens.astype(np.int64), SEED)
    random = np.random.RandomState(2019)
    inits = {name: reference.initial(c, random) for name, c in MODELS.items()}
    probes = {name: probes_of(init, random) for name, init in inits.items()}
    print("identities, 7 steps:")
    if not identities(inits, data):
        sys.exit("the simulation contradicts itself; nothing was written")

    result = {"tokens": "replicas.tokens", "models": {}, "cases": []}
    for name, init in inits.items():
        result["models"][name] = {"init": f"replicas_{name}.safetensors", "probes": probes[name],
                                  "tensors": [[n, x.size] for n, x in init.items()]}
    print("errors of the same in float32:           loss     norm      val  weights")
    worst = [0, 0, 0, 0]
    for name, (model, d, options) in CASES.items():
        options = {**(LLAMA_RATE if model == "llama" else {}), **options}
        c, init = MODELS[model], inits[model]
        out, _ = simulate(c, options, d, init, data)
        out32, _ = simulate(c, options, d, init, data, torch.float32)
        start = {n: torch.tensor(x).double() for n, x in init.items()}
        errors = relative_errors(out32, out, start)
        worst = [max(a, b) for a, b in zip(worst, errors)]
        print(f"    {name:33s} " + "".join(f"{e:9.1e}" for e in errors) + f"   loss {out['losses'][0]:.3f} -> "
              f"{out['losses'][-1]:.3f}, norm {min(out['norms']):.2f} .. {max(out['norms']):.2f}", flush=True)
        points = out.pop("points")
        last = points[max(points)]
        case = {"name": name, "model": model, "d": d, "arguments": arguments_of(c, options)}
        for key in ("losses", "norms"):
            case[key] = [number(x) for x in out[key]]
        case["val"] = {t: number(x) for t, x in out["val"].items()}
        case["weights"] = {t: [number(p[n].flatten()[i].item()) for n, i in probes[model]] for t, p in points.items()}
        case["moved"] = [number((last[n] - start[n]).norm().item()) for n in start]
        case["float32"] = [float(f"{e:.2g}") for e in errors]
        result["cases"].append(case)
    print("    " + f"{'worst':33s} " + "".join(f"{e:9.1e}" for e in worst))

    for name, init in inits.items():
        reference.write_safetensors(os.path.join(directory, f"replicas_{name}.safetensors"), init, {"format": "pt"})
    with open(os.path.join(directory, "replicas.tokens"), "wb") as file:
        file.write(np.array([20240520, 1, len(tokens), *[0] * 253], "<i4").tobytes() + tokens.astype("<u2").tobytes())
    path = os.path.join(directory, "replicas.json")
    with open(path, "w") as file:
        lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in result.pop("cases"))
        file.write(json.dumps(result, separators=(",", ":"))[:-1] + ',"cases":[\n' + lines + "\n]}\n")
    print(f"{path}: {len(CASES)} cases, {os.path.getsize(path)} bytes")


if __name__ == "__main__":
    main()
