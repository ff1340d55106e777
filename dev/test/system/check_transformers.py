#!/usr/bin/env python3
"""
check_transformers.py: weights and models exchanged with Hugging Face's transformers, both ways.

    make check_transformers      needs torch and transformers: of the python3 that is first on PATH

--installed: only says by its exit status whether they are there.

Every case is a small model of random weights, saved by transformers: GPT-2 and Llama, tied and untied, grouped heads,
eps and theta of their own, scaled rotary positions, float32, bf16 and fp16, one file and several, a vocabulary that no
mesh divides. Of each:

    logits      of build/logits, which takes only the folder, position by position beside those of transformers
    weights     --init, --export: the same bits (on meshes: test_pretrained.py); transformers finds every name, and the
                tokenizer
    checkpoint  a few steps of training, then the logits of the checkpoint, in both programs
    tokenizer   AutoTokenizer loads every folder, also of a run on bytes (which files go along, and where a text ends:
                test_pretrained.py)

Bound of the logits: relative to the largest, a sum of K products of float32 errs by about sqrt(K) 2^-24 for errors of
random sign (Higham 2002, section 4.5); a model is 8 L + 4 such stages whose errors add up; 4 for how much a stage
enlarges the error of its input. And the test has to be able to fail: beside it stands how far transformers itself is
off when what is special in a case (its scaling, theta, eps, ...) is omitted, which must be over the bound.
"""
import json, os, shutil, struct, subprocess, tempfile

from checks import check, finish, launch, needs, write_shard

needs("torch", "transformers", "tokenizers")
os.environ["TRANSFORMERS_VERBOSITY"] = "error"
os.environ["HF_HUB_OFFLINE"] = "1"
import numpy, tokenizers, torch, transformers

T, V, L = 96, 259, 4
GPT2 = dict(n_embd=48, n_layer=L, n_head=4, vocab_size=V, n_positions=T, initializer_range=0.15)
LLAMA = dict(hidden_size=64, num_hidden_layers=L, num_attention_heads=4, num_key_value_heads=2, intermediate_size=96,
             vocab_size=V, max_position_embeddings=T, initializer_range=0.15)
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=48)

# Name; configuration; what is special; type of the file's numbers; largest shard; whether names have no first part.
CASES = [
    ("gpt2", transformers.GPT2Config(**GPT2), {"activation_function": "relu"}, torch.float32, None, False),
    ("gpt2, bare names, bf16, shards", transformers.GPT2Config(**GPT2, layer_norm_epsilon=1e-2),
     {"layer_norm_epsilon": 1e-5}, torch.bfloat16, "60KB", True),
    ("gpt2, untied, mlp of its own, fp16",
     transformers.GPT2Config(**{**GPT2, "n_inner": 64}, tie_word_embeddings=False), {}, torch.float16, None, False),
    ("llama", transformers.LlamaConfig(**LLAMA, rms_norm_eps=1e-2, rope_theta=500.0), {"rope_theta": 10000.0},
     torch.float32, None, False),
    ("llama, tied, llama3 scaling, bf16, shards",
     transformers.LlamaConfig(**LLAMA, rms_norm_eps=1e-5, rope_theta=500000.0, rope_scaling=LLAMA3,
                              tie_word_embeddings=True), {"rope_scaling": None}, torch.bfloat16, "60KB", False),
    ("llama, one key/value head, fp16", transformers.LlamaConfig(**{**LLAMA, "num_key_value_heads": 1}), {},
     torch.float16, "60KB", False),
]


def train_gpt(work, *options, data="tokens.bin"):
    batch = ["--micro-batch", "1", "--global-batch", "4", "--eval-every", "0", "--sample-every", "0", "--warmup", "0"]
    done = launch("./train_gpt", *batch, "--data", f"{work}/{data}", *options)
    return done.returncode == 0 or check(False, f"{' '.join(options)}: {done.stderr}")


def load(folder, dtype=torch.float32):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, torch_dtype=dtype).eval()


# A folder whose config.json says something else. Newer versions have all about rotary positions in one member.
def changed(folder, special):
    other = f"{folder}.changed"
    shutil.rmtree(other, ignore_errors=True)
    shutil.copytree(folder, other)
    with open(f"{folder}/config.json") as f:
        config = json.load(f)
    rope = config.get("rope_parameters")
    if rope and "rope_theta" in special:
        rope.update(special)
    elif rope and "rope_scaling" in special:
        config["rope_parameters"] = {"rope_type": "default", "rope_theta": rope["rope_theta"]}
    else:
        config.update(special)
    with open(f"{other}/config.json", "w") as f:
        json.dump(config, f)
    return other


def logits_of(model, tokens):
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0].numpy()


def our_logits(work, folder, tokens):
    with open(f"{work}/tokens", "wb") as f:
        f.write(struct.pack(f"<{len(tokens)}i", *tokens))
    subprocess.run([os.environ.get("BUILD", "build") + "/logits", folder, f"{work}/tokens", f"{work}/logits"],
                   check=True)
    return numpy.fromfile(f"{work}/logits", numpy.float32).reshape(len(tokens), -1)


def compare(what, work, folder, tokens, special):
    model = load(folder)
    theirs, ours = logits_of(model, tokens), our_logits(work, folder, tokens)
    size = abs(theirs).max()
    K = max(model.config.hidden_size, getattr(model.config, "intermediate_size", 4 * model.config.hidden_size))
    bound = 4 * (8 * L + 4) * K**0.5 * 2.0**-24 * size
    error = abs(ours - theirs).max(axis=1)
    check(error.max() <= bound,
          f"{what}: logits of {len(tokens)} positions: error {error.max():.1e} at {error.argmax()}, bound {bound:.1e}")
    if special:
        other = abs(logits_of(load(changed(folder, special)), tokens) - theirs).max()
        check(other > bound, f"{what}: without {', '.join(special)} {other:.1e}")


def same_weights(a, b):
    a, b = a.state_dict(), b.state_dict()
    return a.keys() == b.keys() and all(x.dtype == b[name].dtype and torch.equal(x.view(torch.uint8),
                                                                                 b[name].view(torch.uint8))
                                        for name, x in a.items())


def add_tokenizer(folder):
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = tokenizers.decoders.ByteLevel()
    bpe.train_from_iterator(["the cat and the hat sat on that"] * 3, tokenizers.trainers.BpeTrainer(
        vocab_size=V, initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    transformers.PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="the").save_pretrained(folder)


def same_tokenizer(a, b):
    text = "the cat's that: \u00e9\u4e2d 12"
    a, b = (transformers.AutoTokenizer.from_pretrained(folder) for folder in (a, b))
    tokens = a(text)["input_ids"]
    return tokens == b(text)["input_ids"] and len(tokens) < len(text.encode()) and b.eos_token == "the"


def check_case(work, number, name, config, special, dtype, shard, bare):
    torch.manual_seed(number)
    model = transformers.AutoModelForCausalLM.from_config(config)
    for n, p in model.named_parameters():  # norms that are not 1, biases that are not 0
        if p.dim() == 1:
            p.data += 0.3 * torch.randn(p.shape)
    source = f"{work}/{number}"
    (model.transformer if bare else model).to(dtype).save_pretrained(source, max_shard_size=shard or "1GB")
    assert not shard or os.path.exists(f"{source}/model.safetensors.index.json")
    if number % 2 == 0:
        add_tokenizer(source)
    tokens = [int(t) for t in torch.randint(0, V, (T,))]
    compare(name, work, source, tokens, special)
    want, out, run = load(source), f"{source}.0", f"{source}.run"
    good = train_gpt(work, "--init", source, "--seq", "16", "--export", out)
    check(good and same_weights(load(out, "auto"), want) and
          numpy.array_equal(logits_of(load(out), tokens), logits_of(want, tokens)),
          f"{name}: in and out again: the same bits and logits")
    good = train_gpt(work, "--init", source, "--seq", "16", "--steps", "4", "--lr", "1e-2", "--out", run)
    check(good and not same_weights(load(f"{run}/step_00000004"), want),
          f"{name}: training from it changes the weights")
    compare(f"{name}: our checkpoint", work, f"{run}/step_00000004", tokens, {})
    if number % 2 == 0:
        check(same_tokenizer(source, f"{run}/step_00000004") and same_tokenizer(source, out),
              f"{name}: its tokenizer goes along")


# A run that begins with nothing, on bytes.
def check_own(work):
    size = ["--layers", "1", "--hidden", "16", "--heads", "2", "--seq", "96", "--steps", "2"]
    with open(f"{work}/text.txt", "w") as f:
        f.write("A text of one\u00e9s own. " * 200)
    good = train_gpt(work, *size, "--export", f"{work}/bytes", data="text.txt")
    text = "\u00e9\u4e2d  a\tb\n"
    tokenizer = transformers.AutoTokenizer.from_pretrained(f"{work}/bytes")
    tokens, config = tokenizer(text)["input_ids"], transformers.AutoConfig.from_pretrained(f"{work}/bytes")
    check(good and tokens == list(text.encode()) and tokenizer.decode(tokens) == text and len(tokenizer) == 256 and
          (config.bos_token_id, config.eos_token_id) == (None, None), "a run on bytes: its tokenizer")


def main():
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as work:
        write_shard(f"{work}/tokens.bin", torch.randint(0, V, (4000,)).tolist())
        for number, case in enumerate(CASES):
            check_case(work, number, *case)
        check_own(work)
    finish()


main()
