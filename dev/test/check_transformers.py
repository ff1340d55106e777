#!/usr/bin/env python3
"""Exchanges weights with Hugging Face's transformers, both ways, and compares the loss on the same text.

    python3 dev/test/check_transformers.py TEXT      needs torch and transformers, and ./train_gpt

Out: a checkpoint folder of ours is loaded as it is. In: random models saved by transformers, in several shards, are
read by --init. The two losses must agree to 1e-5, some hundred float32 roundings. Not part of make test.
"""
import json
import os
import subprocess
import sys
import tempfile

import torch
import transformers

T, COUNT = 64, 8
SIZES = {"gpt2": [], "llama": ["--kv-heads", "2", "--ffn", "192"]}


def train_gpt(text, out, arch, *options):
    """Trains a small model; returns its last validation loss, over the first COUNT sequences of the last 5 % of text."""
    subprocess.run(["./train_gpt", "--arch", arch, "--hidden", "64", "--layers", "3", "--heads", "4", *SIZES[arch],
                    "--seq", str(T), "--micro-batch", "8", "--eval-every", "1", "--eval-sequences", str(COUNT),
                    "--sample-every", "0", "--data", text, "--out", out, *options], check=True, stdout=subprocess.DEVNULL)
    with open(os.path.join(out, "log.jsonl"), encoding="utf-8") as log:
        return json.loads(log.readlines()[-1])["val_loss"]


def loss_of(model, text):
    with open(text, "rb") as f:
        data = f.read()
    first = len(data) - len(data) // 20
    x = torch.tensor([list(data[first + k * T:first + k * T + T + 1]) for k in range(COUNT)])
    with torch.no_grad():
        logits = model.eval()(x[:, :-1]).logits
    return torch.nn.functional.cross_entropy(logits.reshape(-1, 256), x[:, 1:].reshape(-1)).item()


def config(arch):
    if arch == "gpt2":
        return transformers.GPT2Config(n_embd=64, n_layer=3, n_head=4, vocab_size=256, n_positions=T)
    return transformers.LlamaConfig(hidden_size=64, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
                                    intermediate_size=192, vocab_size=256, max_position_embeddings=T, rms_norm_eps=1e-5)


def main():
    text, worst = sys.argv[1], 0.0
    torch.manual_seed(1)
    with tempfile.TemporaryDirectory() as work:
        for arch in SIZES:
            ours = train_gpt(text, f"{work}/out_{arch}", arch, "--steps", "40")
            theirs = loss_of(transformers.AutoModelForCausalLM.from_pretrained(f"{work}/out_{arch}/step_00000040"), text)
            print(f"{arch}: our checkpoint: loss here {ours:.7f}, in transformers {theirs:.7f}")
            worst = max(worst, abs(ours - theirs))
            model = transformers.AutoModelForCausalLM.from_config(config(arch))
            model.save_pretrained(f"{work}/in_{arch}", max_shard_size="150KB")
            theirs = loss_of(model, text)
            ours = train_gpt(text, f"{work}/init_{arch}", arch, "--steps", "1", "--lr", "0", "--min-lr", "0",
                             "--init", f"{work}/in_{arch}")
            print(f"{arch}: their shards: loss here {ours:.7f}, in transformers {theirs:.7f}")
            worst = max(worst, abs(ours - theirs))
    print(f"largest difference {worst:.1e}, bound 1e-5")
    sys.exit(0 if worst < 1e-5 else 1)


if __name__ == "__main__":
    main()
