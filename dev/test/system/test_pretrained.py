#!/usr/bin/env python3
"""
test_pretrained.py: weights of other programs, in and out, on meshes. Nothing but Python's standard library.

    dev/test/system/test_pretrained.py [PROGRAM]      the current folder is the project's, ./train_gpt is built;
                                                      MPIRUN="": one rank only

Files are written and read here by their description (Hugging Face's safetensors, one file or several, float32, bf16 or
fp16), and train_gpt turns each into another on one rank or a mesh: --init, --steps 0, --export. Every number has to
have the same bits. Then what has to be refused: contradictions between the command line and the weights, damaged files,
places that are taken. Logits: check_transformers.py.
"""
import glob, json, os, random, shutil, struct, subprocess, sys, tempfile
from array import array

sys.dont_write_bytecode = True
from checks import check, finish, read_safetensors

L, C, NH, V, T, F = 4, 24, 4, 67, 16, 40
PROGRAM = sys.argv[1] if len(sys.argv) > 1 else "./train_gpt"


# ---- Models: {name: (shape, numbers)}, as Hugging Face has them -----------------------------------------------------

def gpt2_shapes(inner=4 * C):
    shapes = {"transformer.wte.weight": (V, C), "transformer.wpe.weight": (T, C)}
    for i in range(L):
        block = {"ln_1.weight": (C,), "ln_1.bias": (C,), "attn.c_attn.weight": (C, 3 * C), "attn.c_attn.bias": (3 * C,),
                 "attn.c_proj.weight": (C, C), "attn.c_proj.bias": (C,), "ln_2.weight": (C,), "ln_2.bias": (C,),
                 "mlp.c_fc.weight": (C, inner), "mlp.c_fc.bias": (inner,), "mlp.c_proj.weight": (inner, C),
                 "mlp.c_proj.bias": (C,)}
        shapes.update({f"transformer.h.{i}.{name}": shape for name, shape in block.items()})
    return {**shapes, "transformer.ln_f.weight": (C,), "transformer.ln_f.bias": (C,)}


def llama_shapes(kv_heads, tied):
    shapes, kv = {"model.embed_tokens.weight": (V, C)}, kv_heads * C // NH
    for i in range(L):
        block = {"input_layernorm.weight": (C,), "self_attn.q_proj.weight": (C, C), "self_attn.k_proj.weight": (kv, C),
                 "self_attn.v_proj.weight": (kv, C), "self_attn.o_proj.weight": (C, C),
                 "post_attention_layernorm.weight": (C,),
                 "mlp.gate_proj.weight": (F, C), "mlp.up_proj.weight": (F, C), "mlp.down_proj.weight": (C, F)}
        shapes.update({f"model.layers.{i}.{name}": shape for name, shape in block.items()})
    shapes["model.norm.weight"] = (C,)
    return shapes if tied else {**shapes, "lm_head.weight": (V, C)}


def count(shape):
    n = 1
    for k in shape:
        n *= k
    return n


# Numbers of a type, as float32. Those of 16 bits are drawn from all bit patterns that are finite, as they are.
def draw(random_bits, dtype):
    if dtype == "F32":
        bits = random_bits.getrandbits(32)
        while bits >> 23 & 0xff == 0xff:
            bits = random_bits.getrandbits(32)
        return struct.unpack("<f", struct.pack("<I", bits))[0]
    bits = random_bits.getrandbits(16)
    while (bits >> 7 & 0xff == 0xff) if dtype == "BF16" else (bits >> 10 & 0x1f == 0x1f):
        bits = random_bits.getrandbits(16)
    if dtype == "BF16":
        return struct.unpack("<f", struct.pack("<I", bits << 16))[0]
    return struct.unpack("<e", struct.pack("<H", bits))[0]


def make_model(shapes, dtype, seed):
    source = random.Random(seed)
    return {name: (shape, array("f", (draw(source, dtype) for _ in range(count(shape))))) for name,
            shape in shapes.items()}


def to_bytes(numbers, dtype):
    if dtype == "F32":
        return numbers.tobytes()
    if dtype == "F16":
        return struct.pack(f"<{len(numbers)}e", *numbers)
    return array("H", memoryview(numbers.tobytes()).cast("H")[1::2]).tobytes()  # the upper halves


def from_bytes(data, dtype):
    if dtype == "F32":
        return array("f", bytes(data))
    halves = array("H", bytes(data))
    return array("f", array("I", (h << 16 for h in halves)).tobytes())


# ---- Files ----------------------------------------------------------------------------------------------------------

def write_safetensors(path, model, dtype, more=()):
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, (shape, numbers) in list(model.items()) + list(more):
        raw = to_bytes(numbers, dtype)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    open(path, "wb").write(struct.pack("<Q", len(text)) + text + data)


def read_numbers(path, dtype):
    tensors = read_safetensors(path)
    if any(found != dtype for found, _, _ in tensors.values()):
        return None
    return {name: (shape, from_bytes(data, dtype)) for name, (_, shape, data) in tensors.items()}


def write_folder(folder, config, model, dtype, shards=1, bare=False, constants=()):
    os.makedirs(folder)
    json.dump(config, open(f"{folder}/config.json", "w"))
    if bare:
        model = {name.split(".", 1)[1] if name != "lm_head.weight" else name: x for name, x in model.items()}
    if shards == 1:
        write_safetensors(f"{folder}/model.safetensors", model, dtype, constants)
        return
    files, names = [f"model-{i + 1:05d}-of-{shards:05d}.safetensors" for i in range(shards)], list(model)
    for i, file in enumerate(files):
        write_safetensors(f"{folder}/{file}", {name: model[name] for name in names[i::shards]}, dtype)
    json.dump({"weight_map": {name: files[i % shards] for i, name in enumerate(names)}},
              open(f"{folder}/model.safetensors.index.json", "w"))


GPT2 = {"model_type": "gpt2", "n_layer": L, "n_embd": C, "n_head": NH, "n_positions": T, "vocab_size": V}
LLAMA = {"model_type": "llama", "num_hidden_layers": L, "hidden_size": C, "num_attention_heads": NH,
         "num_key_value_heads": 2,
         "intermediate_size": F, "max_position_embeddings": T, "vocab_size": V, "rms_norm_eps": 1e-6,
         "rope_theta": 12345.0}


# ---- Runs -----------------------------------------------------------------------------------------------------------

MESHES = {"1 rank": (1, []), "t=2": (2, ["--tp", "2"]), "p=2": (2, ["--pp", "2"]), "d=2": (2, []),
          "t=2 p=2 v=2": (4, ["--tp", "2", "--pp", "2", "--vpp", "2"]), "d=2, ZeRO": (2, ["--zero", "1"])}


def train_gpt(ranks, *options):
    command = ["scripts/mpirun.sh", "-np", str(ranks)] if ranks > 1 else []
    return subprocess.run([*command, PROGRAM, *options], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          errors="replace",
                          env={**os.environ, "OMP_NUM_THREADS": "1"})


# What the program itself has said on stderr, without its launcher's words.
def words(done):
    return " ".join(line for line in done.stderr.split("\n") if line.startswith("train_gpt: "))


def same(model, other):
    return other is not None and model.keys() == other.keys() and all(
        shape == other[name][0] and numbers.tobytes() == other[name][1].tobytes() for name,
                                                                      (shape, numbers) in model.items())


def convert(what, mesh, source, target, read, model, *options):
    ranks, options = MESHES[mesh][0], [*MESHES[mesh][1], *options]
    if ranks > 1 and os.environ.get("MPIRUN") == "":
        return
    # What divides the optimizer's state is there in training only: a step that changes nothing.
    nothing = ["--steps", "1", "--lr", "0", "--min-lr", "0", "--clip", "0", "--sample-every", "0", "--eval-every", "0"]
    if "--zero" not in options: # --export alone trains nothing, too
        nothing = ["--steps", "0"] if ranks > 1 else []
    done = train_gpt(ranks, "--init", source, "--export", target, *options, *nothing)
    good = done.returncode == 0 and same(model, read(target)) and not glob.glob(target + ".tmp*")
    check(good, f"{what}, on {mesh}")
    if not good:
        print(done.stdout, done.stderr)


def refused(what, said, *options, status=2):
    done = train_gpt(1, *options)
    text = done.stderr.strip()
    check(done.returncode in (1, status) and said in text and "Sanitizer" not in text, f"{what}: {text}")


def write_shard(path, tokens):
    open(path, "wb").write(struct.pack(f"<256i{len(tokens)}H", 20240520, 1, len(tokens), *[0] * 253, *tokens))


def test_conversions(work):
    def folder():
        return lambda path: read_numbers(f"{path}/model.safetensors", "F32")

    f32 = make_model(gpt2_shapes(), "F32", 1)
    f16, bf16 = make_model(gpt2_shapes(), "F16", 2), make_model(gpt2_shapes(), "BF16", 3)
    constants = [(f"transformer.h.{i}.attn.bias", ((1, 1, T, T), array("f", [1] * (T * T)))) for i in range(L)]
    constants += [("transformer.h.0.attn.masked_bias", ((1,), array("f", [-1e4]))),
                  ("lm_head.weight", f32["transformer.wte.weight"])]
    write_folder(f"{work}/f32", GPT2, f32, "F32", constants=constants)
    write_folder(f"{work}/f16", GPT2, f16, "F16", shards=3, bare=True)
    write_folder(f"{work}/bf16", GPT2, bf16, "BF16", shards=2)
    convert("gpt2 to a folder", "1 rank", f"{work}/f32", f"{work}/f32.1", folder(), f32)
    convert("fp16 in three files, bare names, to a folder", "t=2", f"{work}/f16", f"{work}/f16.1", folder(), f16)
    convert("bf16 in two files to float32", "t=2 p=2 v=2", f"{work}/bf16", f"{work}/bf16.1", folder(), bf16)
    convert("bf16 to float32", "d=2", f"{work}/bf16", f"{work}/bf16.2", folder(), bf16, "--seq", "8")
    convert("gpt2 to a folder", "p=2", f"{work}/f32", f"{work}/f32.2", folder(), f32)
    for tied in (False, True):
        shapes, name = llama_shapes(2, tied), "llama, tied" if tied else "llama"
        model, config = make_model(shapes, "BF16" if tied else "F32", 4 + tied), {**LLAMA, "tie_word_embeddings": tied}
        inverse = [("model.layers.0.self_attn.rotary_emb.inv_freq",
                    ((C // NH // 2,), array("f", [1] * (C // NH // 2))))]
        write_folder(f"{work}/{name}", config, model, "BF16" if tied else "F32", bare=tied, constants=inverse)
        for i, mesh in enumerate(["1 rank", "t=2"] if tied or os.environ.get("MPIRUN") == "" else ["t=2 p=2 v=2"]):
            convert(name, mesh, f"{work}/{name}", f"{work}/{name}.{i}", folder(), model)
        written = json.load(open(f"{work}/{name}.0/config.json"))
        check(all(written[key] == value for key, value in config.items()), f"{name}: its config.json says the same")
    # Numbers that a step can be computed with.
    small = {name: (shape, array("f", (x % 1 - 0.5 for x in numbers))) for name,
             (shape, numbers) in make_model(gpt2_shapes(), "F16", 6).items()}
    write_folder(f"{work}/small", GPT2, small, "F32")
    write_shard(f"{work}/tokens.bin", [random.Random(1).randrange(V) for _ in range(2000)])
    convert("float32, trained with a rate of 0,", "d=2, ZeRO", f"{work}/small", f"{work}/small.1", folder(), small,
            "--data", f"{work}/tokens.bin",
            "--seq", "8", "--global-batch", "2")


def test_refused(work):
    folder = f"{work}/f32"
    for option, value, has in (("--layers", "3", "4"), ("--hidden", "48", "24"), ("--heads", "2", "4"),
                               ("--ffn", "97", "96"), ("--vocab", "68", "67"),
                               ("--seq", "17", "16")):
        refused("contradiction", f"{option} {value}, but {folder} has {has}", "--init", folder, option, value,
                "--steps", "0")
    refused("contradiction", "--kv-heads 4, but", "--init", f"{work}/llama", "--kv-heads", "4", "--steps", "0")
    refused("contradiction", f"--arch llama, but {folder} is a gpt2", "--init", folder, "--arch", "llama", "--steps",
            "0")
    refused("contradiction", f"--model gpt2-124M has --layers 12, but {folder} has 4", "--init", folder, "--model",
            "gpt2-124M", "--steps", "0")
    refused("a place that is taken", "is there already", "--init", folder, "--export", f"{work}/f16", "--steps", "0")
    refused("a place that is not there", "cannot write in", "--init", folder, "--export", f"{work}/no/where", "--steps",
            "0")
    for name in ("openai-community/gpt2", f"{work}/none/such"):
        refused("a name of the hub, or of nothing", "hf download", "--init", name, "--steps", "0")
    os.mkdir(f"{work}/foreign")
    json.dump(GPT2, open(f"{work}/foreign/config.json", "w"))
    open(f"{work}/foreign/pytorch_model.bin", "wb").write(b"PK\x03\x04" + bytes(200))
    for name in ("foreign", "foreign/pytorch_model.bin"):
        refused("another format", "save_pretrained", "--init", f"{work}/{name}", "--steps", "0")
    check(not [name for name in os.listdir(work) if name.endswith(".tmp")], "nothing is left of what was refused")
    write_folder(f"{work}/qwen", {**LLAMA, "model_type": "qwen2"}, {}, "F32")
    refused("another architecture", 'of type "qwen2"', "--init", f"{work}/qwen", "--steps", "0")
    shutil.copytree(folder, f"{work}/vocabulary")
    open(f"{work}/vocabulary/tokenizer.json", "w").write("{}")
    refused("a text, and a vocabulary that is none", '"model" is missing', "--init", f"{work}/vocabulary",
            "--data", __file__, "--steps", "1", status=1)
    whole = f"{folder}/model.safetensors"
    data, at = open(whole, "rb").read(), place_of(whole, "transformer.ln_f.bias")
    shutil.copytree(folder, f"{work}/damaged")
    for what, damaged, said in (("cut off", data[:-1], "download or write it again"),
                                ("a NaN", data[:at] + b"\xff" * 4 + data[at + 4:], "must be finite")):
        open(f"{work}/damaged/model.safetensors", "wb").write(damaged)
        refused(what, said, "--init", f"{work}/damaged", "--steps", "0")


# The place of tensor `name` in a file of safetensors.
def place_of(path, name):
    data = open(path, "rb").read(1 << 20)
    n = struct.unpack("<Q", data[:8])[0]
    return 8 + n + json.loads(data[8:8 + n])[name]["data_offsets"][0]


def flip_bit(path, at):
    with open(path, "r+b") as f:
        f.seek(at)
        byte = f.read(1)[0]
        f.seek(at)
        f.write(bytes([byte ^ 1]))


# --init of a checkpoint: what it holds has to be what was written.
def test_checkpoints(work):
    sizes = ["--seq", "8", "--global-batch", "2", "--micro-batch", "1", "--sample-every", "0", "--eval-every", "0"]
    done = train_gpt(1, "--init", f"{work}/small", "--data", f"{work}/tokens.bin", *sizes, "--steps", "2", "--out",
                     f"{work}/run")
    run = f"{work}/run/step_00000002"
    check(done.returncode == 0 and os.path.exists(f"{run}/trainer.json"), "a checkpoint to start from")
    damaged = f"{work}/damaged"
    for ranks, mesh in ((1, []), (2, ["--tp", "2"])):
        if ranks > 1 and os.environ.get("MPIRUN") == "":
            continue
        shutil.rmtree(damaged, ignore_errors=True)
        shutil.copytree(run, damaged)
        target = f"{work}/from.{ranks}"
        os.unlink(f"{damaged}/optimizer.safetensors")  # is never read here
        done = train_gpt(ranks, "--init", damaged, *mesh, "--steps", "0", "--export", target)
        check(done.returncode == 0 and os.path.isdir(target), f"--init of a checkpoint on {ranks} ranks")
        flip_bit(f"{damaged}/model.safetensors",
                 place_of(f"{damaged}/model.safetensors", "transformer.h.2.mlp.c_fc.weight") + 4 * 7)
        done = train_gpt(ranks, "--init", damaged, *mesh, "--steps", "0", "--export", f"{target}.no")
        check(done.returncode == 1 and "its checksum is" in done.stderr and not os.path.exists(f"{target}.no"),
              f"one bit has changed, on {ranks} ranks: {words(done)}")
        os.unlink(f"{damaged}/trainer.json")
        done = train_gpt(ranks, "--init", damaged, *mesh, "--steps", "0", "--export", f"{target}.bit")
        check(done.returncode == 0, "without trainer.json it is a folder like any other")
    shutil.rmtree(damaged)
    shutil.copytree(run, damaged)
    text = open(f"{damaged}/config.json").read()
    open(f"{damaged}/config.json", "w").write(text.replace("1e-05", "2e-05"))
    refused("a configuration that has changed", "config.json: its checksum is", "--init", damaged, "--steps", "0",
            "--export", f"{work}/no")
    os.unlink(f"{damaged}/model.safetensors")
    refused("weights that are gone", "model.safetensors", "--init", damaged, "--steps", "0", "--export", f"{work}/no")


# A vocabulary as Hugging Face's library writes it: the bytes, two merges and an end of text. numbers: token -> name
def write_vocabulary(folder, more=()):
    printable = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 255 and b != 173]
    letters = {b: chr(b) for b in printable}
    letters.update({b: chr(256 + i) for i, b in enumerate(b for b in range(256) if b not in printable)})
    vocab = {letters[b]: b for b in range(256)}
    vocab.update({"th": 256, "the": 257})
    added = [{"id": 258 + i, "content": name, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": True}
             for i, name in enumerate(["<|endoftext|>", *more])]
    os.makedirs(folder, exist_ok=True)
    json.dump({"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
               "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                                 "use_regex": True},
               "post_processor": None, "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True,
                                                   "use_regex": True},
               "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                         "end_of_word_suffix": None,
                         "fuse_unk": False, "byte_fallback": False, "vocab": vocab, "merges": ["t h", "th e"]}},
              open(f"{folder}/tokenizer.json", "w"))
    return {token: name for name, token in vocab.items()}


def read(folder, name):
    with open(f"{folder}/{name}") as f:
        return f.read()


def ends_of(folder, name="config.json"):
    return [json.loads(read(folder, name)).get(key, "nothing")
            for key in ("bos_token_id", "eos_token_id", "pad_token_id")]


# The files beside the model in a folder of Hugging Face's: of runs of one's own, and of initial weights.
SIZE = ["--layers", "1", "--hidden", "8", "--heads", "2", "--seq", "16", "--warmup", "0", "--eval-every", "0",
        "--sample-every", "0"]
BESIDE = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
STEP = "step_00000002"


# A text: tokens are bytes.
def test_whole_bytes(work):
    open(f"{work}/text.txt", "w").write("A text of one's own. " * 200)
    data = [*SIZE, "--data", f"{work}/text.txt"]
    done = train_gpt(1, *data, "--steps", "2", "--out", f"{work}/bytes", "--export", f"{work}/bytes.export")
    run = f"{work}/bytes/{STEP}"
    check(done.returncode == 0
          and set(os.listdir(f"{work}/bytes.export")) == BESIDE ==
          set(os.listdir(run)) - {"trainer.json", "optimizer.safetensors"},
          "bytes: a checkpoint and an export have every file")
    check(ends_of(run) == [None, None, "nothing"], "bytes: no token ends a text")
    names = write_vocabulary(f"{work}/words")
    check(json.loads(read(run, "tokenizer.json"))["model"]["vocab"] == {names[b]: b for b in range(256)},
          "bytes: the vocabulary is that of the bytes")
    done = train_gpt(1, *data, "--steps", "3", "--out", f"{work}/bytes", "--resume", "--export", f"{work}/bytes.again")
    check(done.returncode == 0 and read(run, "tokenizer.json") == read(f"{work}/bytes/step_00000003", "tokenizer.json"),
          "bytes: resumed on the text")
    check(train_gpt(1, *data, "--steps", "1", "--init", run).returncode == 0, "bytes: --init, on the text")
    done = train_gpt(1, "--init", run, "--generate", "A te", "--max-new-tokens", "3")
    check(done.returncode == 0 and done.stdout.startswith("A te") and "no vocabulary" not in done.stderr,
          "bytes: --init continues a text")


# Tokens of a vocabulary with an end.
def test_whole_vocabulary(work):
    write_shard(f"{work}/words/tokens.bin", [random.Random(3).randrange(259) for _ in range(2000)])
    data = [*SIZE, "--data", f"{work}/words/tokens.bin"]
    check(train_gpt(1, *data, "--steps", "2", "--out", f"{work}/own").returncode == 0, "a vocabulary: a run")
    run = f"{work}/own/{STEP}"
    about = json.loads(read(run, "tokenizer_config.json"))
    check(ends_of(run) == [258, 258, "nothing"] and about["eos_token"] == about["bos_token"] == "<|endoftext|>" and
          about["model_max_length"] == 16,
          "a vocabulary: a text ends as documents do")
    text = read(f"{work}/words", "tokenizer.json")
    check(read(run, "tokenizer.json") == text, "a vocabulary: the file as it was")
    model = json.loads(text)["model"]
    pair = {"vocab.json": json.dumps({**model["vocab"], "<|endoftext|>": 258}),
            "merges.txt": "\n".join(["#version: 0.2", *model["merges"], ""])}
    os.makedirs(f"{work}/pair")
    for name, text in pair.items():
        open(f"{work}/pair/{name}", "w").write(text)
    shutil.copy(f"{work}/words/tokens.bin", f"{work}/pair")
    done = train_gpt(1, *SIZE, "--data", f"{work}/pair/tokens.bin", "--steps", "1", "--export", f"{work}/pair.export")
    check(done.returncode == 0 and set(os.listdir(f"{work}/pair.export")) == BESIDE - {"tokenizer.json"} | set(pair)
          and all(read(f"{work}/pair.export", name) == text for name, text in pair.items())
          and "GPT2Tokenizer" in read(f"{work}/pair.export", "tokenizer_config.json"),
          f"a vocabulary in two files: as they were {words(done)}")


# External weights, beside data with their vocabulary: their files stay, also when their checkpoint goes (--keep-last).
def test_whole_pretrained(work):
    run, source, data = f"{work}/own/{STEP}", f"{work}/source", [*SIZE, "--data", f"{work}/words/tokens.bin"]
    config = json.loads(read(run, "config.json"))
    shutil.copytree(run, source)
    os.unlink(f"{source}/trainer.json")
    config.update(bos_token_id=3, eos_token_id=[258, 4], pad_token_id=-1)
    json.dump(config, open(f"{source}/config.json", "w"))
    carried = {"generation_config.json": '{"eos_token_id": [258, 4, 9], "temperature": 0.6}',
               "tokenizer_config.json": '{"chat_template": "x"}',
               "special_tokens_map.json": '{"eos_token": "the"}', "chat_template.jinja": "{{ x }}"}
    for name, text in carried.items():
        open(f"{source}/{name}", "w").write(text)
    more = ["--init", source, "--save-every", "1", "--keep-last", "1"]
    check(train_gpt(1, *data, *more, "--steps", "2", "--out", f"{work}/tuned").returncode == 0,
          "a model of others: a run")
    done = train_gpt(1, *data, *more[2:], "--steps", "5", "--out", f"{work}/tuned", "--resume", "--export",
                     f"{work}/tuned.export")
    check(done.returncode == 0 and os.listdir(f"{work}/tuned").count(STEP) == 0,
          "a model of others: resumed without it")
    for folder in (f"{work}/tuned/step_00000005", f"{work}/tuned.export"):
        check(os.path.isdir(folder) and ends_of(folder) == [3, [258, 4], -1]
              and all(read(folder, name) == text for name, text in carried.items()),
              f"a model of others: all of its files are in {folder[len(work):]}")
    check(train_gpt(1, "--init", f"{source}/model.safetensors", *SIZE, "--vocab", "259", "--export",
                    f"{work}/file.export").returncode == 0 and
          ends_of(f"{work}/file.export") == [3, [258, 4], -1], "a model of others: its file of weights alone")


# The source's files do not describe another vocabulary of the same size, nor one that a folder has beside its own.
def test_whole_other_vocabulary(work):
    source = f"{work}/source"
    write_vocabulary(f"{work}/others")
    text = read(f"{work}/others", "tokenizer.json")
    for before, now in (('"t h"', '"h e"'), ('"th"', '"he"'), ('"th e"', '"t he"')):
        text = text.replace(before, now)
    open(f"{work}/others/tokenizer.json", "w").write(text)
    open(f"{work}/words/another.json", "w").write(text)
    open(f"{work}/words/special_tokens_map.json", "w").write("{}")
    shutil.copy(f"{work}/words/tokens.bin", f"{work}/others")
    for number, options in enumerate((["--data", f"{work}/others/tokens.bin"],
                                      ["--data", f"{work}/words/tokens.bin", "--tokenizer",
                                       f"{work}/words/another.json"])):
        out = f"{work}/other.{number}"
        good = train_gpt(1, *SIZE, *options, "--init", source, "--steps", "2", "--out", out).returncode == 0
        check(good and '"he"' in read(f"{out}/{STEP}", "tokenizer.json")
              and "chat_template" not in read(f"{out}/{STEP}", "tokenizer_config.json") and
              not os.path.exists(f"{out}/{STEP}/special_tokens_map.json"),
              "another vocabulary takes nothing from the source's")
    # A vocabulary that is not read here goes along as it is.
    unread = {"tokenizer.json": '{"model": {"type": "Unigram"}}', "tokenizer.model": "\n\x0e\n",
              "tokenizer_config.json": '{"a": 1}'}
    shutil.copytree(source, f"{work}/unread")
    for name, text in unread.items():
        open(f"{work}/unread/{name}", "w").write(text)
    shutil.copy(f"{work}/words/tokens.bin", f"{work}/plain.bin")
    done = train_gpt(1, *SIZE, "--data", f"{work}/plain.bin", "--init", f"{work}/unread", "--steps", "1", "--export",
                     f"{work}/unread.export")
    check(done.returncode == 0 and all(read(f"{work}/unread.export", name) == text for name, text in unread.items()),
          "a vocabulary that is not read goes along")


# Where config.json has no ends of a text, none are written.
def test_whole_defaults(work):
    source = f"{work}/source"
    config = json.loads(read(source, "config.json"))
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        config.pop(key, None)
    json.dump(config, open(f"{source}/config.json", "w"))
    check(train_gpt(1, "--init", source, "--export", f"{work}/silent.export").returncode == 0
          and ends_of(f"{work}/silent.export") == ["nothing"] * 3, "a gpt2 that says nothing")
    json.dump({**config, "eos_token_id": "the"}, open(f"{source}/config.json", "w"))
    shutil.rmtree(f"{work}/silent.export")
    refused("an end that is no token", '"eos_token_id" has to be', "--init", source, "--export",
            f"{work}/silent.export")
    json.dump(config, open(f"{source}/config.json", "w"))
    os.unlink(f"{source}/generation_config.json")
    os.mkdir(f"{source}/generation_config.json")
    refused("a folder for a file", "generation_config.json: not a regular file", "--init", source, "--export",
            f"{work}/silent.export")


# One name, other files: every rank has a folder of its own, in which it looks for --init.
def test_ranks_differ(work):
    if os.environ.get("MPIRUN") == "":
        return
    into = 'cd "$0/${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" && exec "$@"'
    model = make_model(gpt2_shapes(), "BF16", 7)

    def change_weights(folder):
        flip_bit(f"{folder}/model.safetensors",
                 place_of(f"{folder}/model.safetensors", "transformer.h.3.mlp.c_proj.bias"))

    def change_config(folder):
        json.dump({**GPT2, "layer_norm_epsilon": 1e-3}, open(f"{folder}/config.json", "w"))

    cases = (("nothing", lambda folder: None, None), ("a weight of one tensor", change_weights, "rank 1 "),
             ("eps", change_config, "rank 1 "),
             ("the vocabulary, which one has not", lambda folder: open(f"{folder}/tokenizer.json", "w").write("{}"),
              "rank 1 "),
             ("the weights, which one has not", lambda folder: os.unlink(f"{folder}/model.safetensors"), "rank 1: "),
             ("the folder, which one has not", shutil.rmtree, "rank 1"))
    for number, (what, change, said) in enumerate(cases):
        for mesh in (["--tp", "2"], ["--pp", "2"], []) if number < 2 else (["--tp", "2"],):
            place = f"{work}/differ.{number}{''.join(mesh)}"
            for rank in (0, 1):
                write_folder(f"{place}/{rank}/model", GPT2, model, "BF16")
            change(f"{place}/1/model")
            done = subprocess.run(["scripts/mpirun.sh", "-np", "2", "sh", "-c", into, place, os.path.abspath(PROGRAM),
                                   *mesh, "--init", "model", "--steps", "0", "--export", f"{place}/out"],
                                  stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300,
                                  env={**os.environ, "OMP_NUM_THREADS": "1"})
            if said is None:
                good = done.returncode == 0
            else:
                good = done.returncode in (1, 2) and words(done).count("train_gpt: ") == 1 and said in words(done)
            check(good and os.path.exists(f"{place}/out") == (said is None),
                  f"ranks differ in {what}, {' '.join(mesh) or 'd=2'}: {words(done)}")


def test_strangers(work):
    """What an export has not made stays as it is, also what appears while it trains."""
    model = ["--layers", "1", "--hidden", "8", "--heads", "1", "--seq", "8", "--global-batch", "1", "--eval-every", "0",
             "--sample-every", "0"]
    os.makedirs(f"{work}/out.tmp/x")
    own = ("out.tmp/model.safetensors", "out.tmp/config.json")
    for name in own:
        open(f"{work}/{name}", "w").write("mine")
    refused("files of one's own", "is there already", *model, "--steps", "1", "--export", f"{work}/out")
    mine = [open(f"{work}/{name}").read() for name in own]
    check(mine == ["mine"] * 2, f"which stay: {mine}")
    os.symlink("nowhere", f"{work}/link")
    refused("a link that leads nowhere", "is there already", *model, "--steps", "1", "--export", f"{work}/link")
    for path, kind in ((f"{work}/later", "folder"), (f"{work}/later.file", "file")):
        with tempfile.TemporaryFile("w+") as errors:
            run = subprocess.Popen([PROGRAM, *model, "--steps", "2000", "--export", path], stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE,
                                   stderr=errors, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
            for line in run.stdout:
                if line.startswith("step ") and not os.path.exists(path):
                    os.makedirs(f"{path}/mine") if kind == "folder" else open(path, "w").write("mine")
            status = run.wait(timeout=300)
            errors.seek(0)
            said = errors.read()
        kept = os.listdir(path) == ["mine"] if kind == "folder" else open(path).read() == "mine"
        weights = glob.glob(f"{path}.tmp")
        check(status == 1 and kept and len(weights) == 1 and weights[0] in said,
              f"what appears meanwhile is not replaced: {said}")


def main():
    with tempfile.TemporaryDirectory() as work:
        test_conversions(work)
        test_refused(work)
        test_checkpoints(work)
        for test_whole in (test_whole_bytes, test_whole_vocabulary, test_whole_pretrained, test_whole_other_vocabulary,
                           test_whole_defaults):
            test_whole(work)
        test_ranks_differ(work)
        test_strangers(work)
    finish()


if __name__ == "__main__":
    main()
