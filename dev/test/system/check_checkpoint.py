#!/usr/bin/env python3
"""
check_checkpoint.py: is a checkpoint what a checkpoint has to be? Nothing of the C code is used: the checksum is written
down here once more, and so are the names and shapes of the tensors.

    python3 dev/test/system/check_checkpoint.py FOLDER...     says of each "sound", or what is wrong

Looked at: which files there are; trainer.json's own checksum, and its list of the others with sizes and checksums; that
the folder's name, trainer.json and the head of every file of tensors say the same step, and the heads the checksums
that trainer.json has; that tensors lie end to end, and are those of config.json's model, all of them and no others:
weights, both moments, and of what sites have every kind in every copy.
"""
import json, math, os, re, struct, sys

GOLDEN, M1, M2, ALL = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, (1 << 64) - 1
TENSORS = ("model.safetensors", "optimizer.safetensors", "sites.safetensors")
MOMENTS = {"adamw": ("exp_avg", "exp_avg_sq"), "sgd": ("exp_avg",)}
BESIDE = set("tokenizer.json tokenizer_config.json special_tokens_map.json added_tokens.json vocab.json merges.txt "
             "tokenizer.model chat_template.jinja generation_config.json".split())  # for transformers; no part of a run


class Broken(Exception):
    pass


def require(condition, *what):
    if not condition:
        raise Broken(" ".join(str(w) for w in what))


def checksum(data):
    """util/base.h's: the sum over words of 32 bits of mix(place * golden + word)."""
    total = 0
    for i, (word,) in enumerate(struct.iter_unpack("<I", data + bytes(-len(data) % 4))):
        z = i * GOLDEN + word & ALL
        z = (z ^ z >> 30) * M1 & ALL
        z = (z ^ z >> 27) * M2 & ALL
        total += z ^ z >> 31
    return total & ALL


def shapes(config):
    """The model's tensors under transformers' names."""
    if config["model_type"] == "gpt2":
        L, C, V, T = (config[k] for k in ("n_layer", "n_embd", "vocab_size", "n_positions"))
        F = config.get("n_inner", 4 * C)
        all_of = {"transformer.wte.weight": [V, C], "transformer.wpe.weight": [T, C]}
        block = {"ln_1.weight": [C], "ln_1.bias": [C], "attn.c_attn.weight": [C, 3 * C], "attn.c_attn.bias": [3 * C],
                 "attn.c_proj.weight": [C, C], "attn.c_proj.bias": [C], "ln_2.weight": [C], "ln_2.bias": [C],
                 "mlp.c_fc.weight": [C, F], "mlp.c_fc.bias": [F], "mlp.c_proj.weight": [F, C], "mlp.c_proj.bias": [C]}
        before, after = "transformer.h.", {"transformer.ln_f.weight": [C], "transformer.ln_f.bias": [C]}
    else:
        L, C, F, V = (config[k] for k in ("num_hidden_layers", "hidden_size", "intermediate_size", "vocab_size"))
        K = C // config["num_attention_heads"] * config["num_key_value_heads"]
        all_of = {"model.embed_tokens.weight": [V, C]}
        block = {"self_attn.q_proj.weight": [C, C], "self_attn.k_proj.weight": [K, C],
                 "self_attn.v_proj.weight": [K, C], "self_attn.o_proj.weight": [C, C], "mlp.gate_proj.weight": [F, C],
                 "mlp.up_proj.weight": [F, C], "mlp.down_proj.weight": [C, F], "input_layernorm.weight": [C],
                 "post_attention_layernorm.weight": [C]}
        before, after = "model.layers.", {"model.norm.weight": [C]}
    all_of.update({f"{before}{layer}.{name}": shape for layer in range(L) for name, shape in block.items()})
    all_of.update(after)
    if not config.get("tie_word_embeddings", True):
        all_of["lm_head.weight"] = [V, C]
    return all_of


def expected_tensors(name, model, header, optimizer):
    if name == TENSORS[0]:
        return model
    if name == TENSORS[1]:
        return {f"{moment}.{t}": shape for moment in MOMENTS[optimizer] for t, shape in model.items()}
    parts = [re.match(r"site\.(\d+)\.([a-z_]+)\.", t).groups() for t in header]  # follow from the plan of the sites
    copies, kinds = {int(copy) for copy, _ in parts}, {kind for _, kind in parts}
    require(copies == set(range(len(copies))), name, "has copies", copies)
    return {f"site.{copy}.{kind}.{t}": s for copy in copies for kind in kinds for t, s in model.items()}


def check_tensors(name, data, entry, model, optimizer):
    size, = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__")
    found = checksum(data)
    require(found == int(entry["checksum"], 16), name, f"has the checksum {found:016x}, not {entry['checksum']}")
    expected = expected_tensors(name, model, header, optimizer)
    require(set(header) == set(expected), name, "has other tensors:", sorted(set(header) ^ set(expected))[:3])
    end = 0
    for tensor, about in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        count = 4 * math.prod(about["shape"])
        require(about["dtype"] == "F32" and about["shape"] == expected[tensor], name, tensor, "is", about)
        require(about["data_offsets"] == [end, end + count], name, tensor, "lies at", about["data_offsets"])
        end += count
    require(8 + size + end == len(data), name, "has", len(data), "bytes")


def check(folder):
    """Raises Broken with the reason if the checkpoint is not sound."""
    names = set(os.listdir(folder))
    trainer = open(os.path.join(folder, "trainer.json"), "rb").read()
    own = re.fullmatch(rb'(.*"checksum": ")([0-9a-f]{16})"\n}\n', trainer, re.DOTALL)
    require(own, "trainer.json does not end with its checksum")
    require(checksum(own[1]) == int(own[2], 16), "trainer.json has another checksum than it says")
    about = json.loads(trainer)
    require(names - BESIDE == set(about["files"]) | {"trainer.json"}, "files are", sorted(names))
    require(set(about["files"]) - {TENSORS[2]} == {*TENSORS[:2], "config.json"}, "files of the list:", about["files"])
    require(os.path.basename(folder) == f"step_{about['step']:08d}", "is of step", about["step"])
    files = {name: open(os.path.join(folder, name), "rb").read() for name in about["files"]}
    for name, entry in about["files"].items():
        require(len(files[name]) == entry["bytes"], name, "has", len(files[name]), "bytes, not", entry["bytes"])
    require(checksum(files["config.json"]) == int(about["files"]["config.json"]["checksum"], 16),
            "config.json was changed")
    model = shapes(json.loads(files["config.json"]))
    for name, data in files.items():
        if name in TENSORS:
            check_tensors(name, data, about["files"][name], model, about["optimizer"])


def main():
    said = dict.fromkeys(sys.argv[1:], "sound")
    for folder in said:
        try:
            check(folder.rstrip("/"))
        except (Broken, OSError, ValueError, KeyError, AttributeError, struct.error) as reason:
            said[folder] = f"{type(reason).__name__}: {reason}"
    print(*(f"{folder}: {words}" for folder, words in said.items()), sep="\n")
    return set(said.values()) != {"sound"}


if __name__ == "__main__":
    sys.exit(main())
