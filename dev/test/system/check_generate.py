#!/usr/bin/env python3
"""
check_generate.py: what the trainer writes, beside PyTorch in float64, which has no cache: it computes the whole
sequence anew for every token (gpt2 and llama of make_reference.py, read from our own checkpoint).

    python3 dev/test/system/check_generate.py                      from the project's folder; needs torch, a C compiler
                                                                   and ./train_gpt (TRAIN)
    python3 dev/test/system/check_generate.py --installed          only says by its exit status whether torch is there

1. Greedy texts of a GPT-2 and of a Llama, from prompts of several lengths, some longer than the context of T tokens,
   and far beyond it: the same characters. Where PyTorch's two largest logits are nearer to each other than 1e-4
   (float32 errs by some 1e-6 of logits of about 10) the rest of that text says nothing, and is left out; most must be
   there.
2. What top-k and top-p leave (trainer/sampler.h, built as a library), beside the usual definitions in PyTorch's words:
   sort, running sum of the softmax, keep the first whose sum before them is below P. Random logits have no equal ones,
   about which these differ.
"""
import ctypes, importlib.util, itertools, os, subprocess, sys, tempfile

from checks import ROOT, TRAIN, check, finish, launch, needs, read_safetensors

SYSTEM = "/usr/bin/python3"
if not importlib.util.find_spec("torch") and sys.executable != SYSTEM and os.path.exists(SYSTEM):
    os.execv(SYSTEM, [SYSTEM, *sys.argv])  # where Debian's python3-torch is
needs("torch")
import torch

sys.path.append(f"{ROOT}/dev/test/reference")
import make_reference

T = 24
SIZES = {"gpt2": dict(layers=2, hidden=32, heads=4, kv_heads=4, tied=True, eps=1e-5),
         "llama": dict(layers=2, hidden=32, heads=4, kv_heads=2, tied=False, eps=1e-5, theta=10000.0)}
PROMPTS = ["7", "11 ", "1 2 3 4 5 6", "100 101 102 103 104 105 106 107 ", "31 32 33 34 35 3", "41 42 43 44 45 46"]


def greedy(forward, config, weights, prompt, count):
    """The tokens written, and how many of them are certain. Of more than T tokens the last T / 2 + 1 begin a new
    sequence."""
    tokens, begin, certain = list(prompt), 0, None
    for i in range(count):
        if len(tokens) - begin > T:
            begin = len(tokens) - 1 - T // 2
        logits = forward(config, weights, torch.tensor([tokens[begin:]]))[0, -1]
        top = logits.topk(2)
        if certain is None and top.values[0] - top.values[1] < 1e-4:
            certain = i
        tokens.append(top.indices[0].item())
    return bytes(tokens[len(prompt):]), count if certain is None else certain


def check_texts(arch, work):
    size, out = SIZES[arch], f"{work}/{arch}"
    shape = ["--arch", arch, "--layers", size["layers"], "--hidden", size["hidden"], "--heads", size["heads"], "--ffn",
             96, "--seq", T, *(["--kv-heads", size["kv_heads"]] if arch == "llama" else [])]
    launch(TRAIN, *shape, "--data", f"{work}/text.txt", "--steps", 60, "--warmup", 5, "--eval-every", 0,
           "--sample-every", 0, "--out", out).check_returncode()
    weights = {name: torch.frombuffer(bytearray(data), dtype=torch.float32).reshape(shape).double()
               for name, (_, shape, data) in read_safetensors(f"{out}/step_00000060/model.safetensors").items()}
    forward = lambda c, *rest: make_reference.logits_of({**c, "arch": arch}, *rest)
    compared, wrong, count = 0, 0, 40
    for i, prompt in enumerate(PROMPTS):
        where = ["--out", out, "--resume"] if i % 2 else ["--init", f"{out}/step_00000060/model.safetensors"]
        options = map(str, [*shape, *where, "--generate", prompt, "--temperature", 0, "--max-new-tokens", count])
        got = subprocess.run([TRAIN, *options], check=True, capture_output=True).stdout  # bytes of any kind
        want, certain = greedy(forward, dict(size, vocab=256, seq=T, ffn=96), weights, prompt.encode(), count)
        head = prompt.encode() + want[:certain]
        wrong += not got.startswith(head) or len(got) != len(prompt) + count + 1
        compared += certain
    check(wrong == 0 and compared > 0.7 * count * len(PROMPTS),
          f"{arch}: {wrong} of {len(PROMPTS)} greedy texts are not PyTorch's; {compared} tokens were compared")


def check_sampling(work):
    with open(f"{work}/sampling.c", "w") as f:
        f.write(f'#include "{os.getcwd()}/trainer/sampler.h"\n'
                "int last(const float* z, int V, double D, double P, long long K, double* w) {\n"
                "    Sampling how = {D, P, K};\n    Candidate* m = malloc(V * sizeof *m);\n"
                "    for (int n = 0; n < V; n++) w[n] = 0;\n"
                "    for (int n = 0; n < 64 * V; n++) w[sample_token(&how, z, V, n / (64.0 * V), m)] = 1;\n"
                "    free(m);\n    return 0;\n}\n")
    subprocess.run([os.environ.get("CC", "cc"), "-O2", "-shared", "-fPIC", "-o", f"{work}/sampling.so",
                    f"{work}/sampling.c", "-lm"], check=True)
    library = ctypes.CDLL(f"{work}/sampling.so")
    torch.manual_seed(2)
    wrong, cases = 0, list(itertools.product((5, 60, 300), (0, 1, 4, "half"), (1.0, 0.9, 0.6, 0.2), (0.7, 1.0, 2.0)))
    for V, K, P, D in cases:
        K = V // 2 if K == "half" else K
        z = torch.randn(V) * 1.5
        drawn = (ctypes.c_double * V)()
        library.last((ctypes.c_float * V)(*z.tolist()), V, ctypes.c_double(D), ctypes.c_double(P), ctypes.c_longlong(K),
                     drawn)
        x = z.double() / D
        if K:
            x[x < x.topk(K).values[-1]] = -torch.inf
        if P < 1:
            ordered, index = x.sort(descending=True)
            p = ordered.softmax(0)
            x[index[p.cumsum(0) - p >= P]] = -torch.inf
        p = x.softmax(0)
        # of what may come all that is likely enough to be hit by one of 64 V equally spaced u is drawn
        drawn = torch.tensor(list(drawn)) > 0
        wrong += bool((drawn & (p == 0)).any()) or bool((~drawn & (p > 1.001 / (64 * V))).any())
    check(wrong == 0, f"top-k and top-p keep what PyTorch's definitions keep: all but {wrong} of {len(cases)}")


def main():
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as work:
        with open(f"{work}/text.txt", "w") as f:
            f.write(" ".join(str(i) for i in range(1, 6000)))
        for arch in SIZES:
            check_texts(arch, work)
        check_sampling(work)
    finish()


main()
