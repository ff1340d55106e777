#!/usr/bin/env python3
"""
make_eval.py: the numbers that test_evaluate.c compares with: losses of two small models, in float64.

    python3 dev/test/reference/make_eval.py [OUT_DIRECTORY]

The models are those of make_async_dp.py, whose weights it finds in the folder. Nothing of eval_loader.h is used: a
completion is the end of a list of tokens, of which the last T + 1 are what a model of T positions can see; there is no
padding. Into reference/ beside this file go

    evaluation.choices   multiple choice in llm.c's format: contexts of 1 to 14 tokens, 2 to 5 completions of 1 to 8
    evaluation.json      for each model
        choices          the sum of the losses of each completion, in the order of the file
        right            how many examples are right: by sum, by mean
        float32          largest relative error of them in float32

An example is drawn again until all its answers, by both rules and of both models, are clear: the best completion is
1e-3 ahead of the next, a hundred times what float32 may change.
"""
import json, os, sys
import numpy as np
import torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../system"))
import make_async_dp as replicas, make_reference as reference
from checks import read_safetensors

EXAMPLES, T, V = 43, 8, 61

def weights(path, dtype):
    return {name: torch.tensor(np.frombuffer(data, "<f4").reshape(shape).copy(), dtype=dtype)
            for name, (_, shape, data) in read_safetensors(path).items()}

def loss_of_end(model, p, tokens, n):
    """-log p of the last n tokens, each from all before it."""
    seen = np.array([tokens[-(T + 1):]], dtype=np.int64)
    logits = reference.logits_of(model, p, seen[:, :-1])[0]
    return -logits.log_softmax(-1)[torch.arange(seen.shape[1] - 1), torch.as_tensor(seen[0, 1:])][-n:].sum().item()

def answers(sums, completions):
    means = [s / len(c) for s, c in zip(sums, completions)]
    return int(np.argmin(sums)), int(np.argmin(means)), min(np.diff(np.sort(x))[0] for x in (sums, means))

def draw_example(random, number):
    """-> context, completions. The first are the longest and the shortest that there are."""
    context = random.randint(0, V, {0: 14, 1: 1}.get(number, random.randint(1, 15)))
    completions = [random.randint(0, V, {0: T, 1: 1}.get(number, random.randint(1, T + 1)))
                   for _ in range(random.randint(2, 6))]
    return context.tolist(), [c.tolist() for c in completions]

def write_choices(path, examples):
    stream, longest = [], 0
    for number, (context, completions, label) in enumerate(examples):
        body = [number, label, len(completions)] + [x for part in (context, *completions) for x in (len(part), *part)]
        longest = max(longest, 2 * len(body) + 4)
        stream += [65535, 2 * len(body) + 4, *body]
    with open(path, "wb") as f:
        f.write(np.array([20240522, 1, len(examples), longest] + 252 * [0],
                         "<i4").tobytes() + np.array(stream, "<u2").tobytes())

def main():
    directory = reference.directory(__doc__)
    of = lambda name, dtype: weights(os.path.join(directory, f"replicas_{name}.safetensors"), dtype)
    models = {name: (c, of(name, torch.float64), of(name, torch.float32)) for name, c in replicas.MODELS.items()}
    random = np.random.RandomState(2405)
    examples, sums = [], {name: [] for name in models}
    while len(examples) < EXAMPLES:
        context, completions = draw_example(random, len(examples))
        found = {name: [loss_of_end(c, p, context + x, len(x)) for x in completions]
                 for name, (c, p, _) in models.items()}
        if min(answers(s, completions)[2] for s in found.values()) < 1e-3:
            continue
        by_sum, by_mean, _ = answers(found["gpt2"], completions)
        label = [by_sum, by_mean, random.randint(len(completions))][random.randint(3)]
        examples.append((context, completions, label))
        for name in models:
            sums[name].append(found[name])
    write_choices(os.path.join(directory, "evaluation.choices"), examples)

    result = {}
    for name, (c, p, p32) in models.items():
        right = [sum(answers(s, x)[rule] == label for s, (_, x, label) in zip(sums[name], examples)) for rule in (0, 1)]
        flat = [x for one in sums[name] for x in one]
        flat32 = [loss_of_end(c, p32, a + x, len(x)) for a, b, _ in examples for x in b]
        worst = max(abs(a / b - 1) for a, b in zip(flat32, flat))
        result[name] = {"choices": flat, "right": right, "float32": float(f"{worst:.2g}")}
        print(f"{name}: right {right[0]} and {right[1]} of {EXAMPLES}; PyTorch in float32 {worst:.1e}")
    with open(os.path.join(directory, "evaluation.json"), "w") as f:
        json.dump({"T": T, "vocab": V, "models": result}, f, separators=(",", ":"))
        f.write("\n")

if __name__ == "__main__":
    main()
