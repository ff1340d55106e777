#!/usr/bin/env python3
"""
test_pretrained.py: weights of other programs, in and out, on meshes. Nothing but Python's standard library.

    dev/test/system/test_pretrained.py      in the project's folder, ./train_gpt is built; MPIRUN="": one rank only

Files are written and read here by their description (Hugging Face's safetensors, one file or several, float32, bf16 or
fp16), and train_gpt turns each into another on one rank or a mesh: --init, --steps 0, --export. Every number has to
have the same bits. Then what has to be refused: contradictions between the command line and the weights, damaged files,
places that are taken. Logits: check_transformers.py.
"""
import json, math, os, random, shutil, struct, subprocess, tempfile
from array import array

from checks import TRAIN, check, finish, launch, read, read_safetensors, write_shard
from check_checkpoint import shapes

L, C, NH, V, T, F = 4, 24, 4, 67, 16, 40
MPI = os.environ.get("MPIRUN") != ""


# ---- Models: {name: (shape, numbers)}, as Hugging Face has them -----------------------------------------------------

GPT2 = {"model_type": "gpt2", "n_layer": L, "n_embd": C, "n_head": NH, "n_positions": T, "vocab_size": V}
LLAMA = {"model_type": "llama", "num_hidden_layers": L, "hidden_size": C, "num_attention_heads": NH,
         "num_key_value_heads": 2, "intermediate_size": F, "max_position_embeddings": T, "vocab_size": V,
         "rms_norm_eps": 1e-6, "rope_theta": 12345.0}


def draw(source, dtype):
    """A number of a type, as float32, of all bit patterns that are finite."""
    bits, exponent = {"F32": (32, 0xff << 23), "BF16": (16, 0xff << 7), "F16": (16, 0x1f << 10)}[dtype]
    number = exponent
    while number & exponent == exponent:
        number = source.getrandbits(bits)
    if dtype == "F16":
        return struct.unpack("<e", struct.pack("<H", number))[0]
    return struct.unpack("<f", struct.pack("<I", number << 32 - bits))[0]


def make_model(config, dtype, seed):
    source = random.Random(seed)
    return {name: (shape, array("f", (draw(source, dtype) for _ in range(math.prod(shape)))))
            for name, shape in shapes(config).items()}


def ones(*shape):
    return list(shape), array("f", [1] * math.prod(shape))


def to_bytes(numbers, dtype):
    if dtype == "F16":
        return struct.pack(f"<{len(numbers)}e", *numbers)
    halves = memoryview(numbers.tobytes()).cast("H")
    return (halves if dtype == "F32" else halves[1::2]).tobytes()


# ---- Files ----------------------------------------------------------------------------------------------------------

def write(text, *path):
    os.makedirs(os.path.dirname("/".join(path)), exist_ok=True)
    with open("/".join(path), "wb") as f:
        f.write(text if isinstance(text, bytes) else (text if isinstance(text, str) else json.dumps(text)).encode())


def write_safetensors(path, tensors, dtype):
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, (shape, numbers) in tensors.items():
        raw = to_bytes(numbers, dtype)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    write(struct.pack("<Q", len(text)) + text + data, path)


def write_folder(folder, config, model, dtype, shards=1, bare=False):
    write(config, folder, "config.json")
    if bare:
        model = {name.split(".", 1)[1] if name != "lm_head.weight" else name: x for name, x in model.items()}
    if shards == 1:
        return write_safetensors(f"{folder}/model.safetensors", model, dtype)
    files, names = [f"model-{i + 1:05d}-of-{shards:05d}.safetensors" for i in range(shards)], list(model)
    for i, file in enumerate(files):
        write_safetensors(f"{folder}/{file}", {name: model[name] for name in names[i::shards]}, dtype)
    write({"weight_map": {name: files[i % shards] for i, name in enumerate(names)}},
          folder, "model.safetensors.index.json")


def change_byte(path, tensor):
    """The first of a tensor in a file of safetensors."""
    with open(path, "rb") as f:
        data = bytearray(f.read())
    begin = 8 + struct.unpack("<Q", data[:8])[0]
    data[begin + json.loads(data[8:begin])[tensor]["data_offsets"][0]] ^= 1
    write(bytes(data), path)


# ---- Runs -----------------------------------------------------------------------------------------------------------

MESHES = {"1 rank": (1, []), "t=2": (2, ["--tp", "2"]), "p=2": (2, ["--pp", "2"]), "d=2": (2, []),
          "t=2 p=2 v=2": (4, ["--tp", "2", "--pp", "2", "--vpp", "2"]), "d=2, ZeRO": (2, ["--zero", "1"])}
QUIET = ["--sample-every", "0", "--eval-every", "0"]
SIZE = ["--layers", "1", "--hidden", "8", "--heads", "2", "--seq", "16", "--warmup", "0", *QUIET]


def runs(what, *options, ranks=1):
    done = launch(TRAIN, *options, ranks=ranks)
    return check(done.returncode == 0, f"{what} {done.stderr if done.returncode else ''}") and done


def refused(what, status, word, *options, ranks=1):
    done = launch(TRAIN, *options, ranks=ranks)
    check(done.returncode == status and word in done.stderr and "Sanitizer" not in done.stderr,
          f"{what}, {ranks} ranks: {done.returncode} {done.stderr[:300].strip()}")


def convert(what, mesh, source, target, model, *options):
    ranks, on = MESHES[mesh]
    if ranks > 1 and not MPI:
        return
    nothing = ["--steps", "0"] if ranks > 1 and "--steps" not in options else []  # --export alone trains nothing, too
    if runs(f"{what}, on {mesh}", "--init", source, "--export", target, *on, *options, *nothing, ranks=ranks):
        expected = {name: ("F32", tuple(shape), numbers.tobytes()) for name, (shape, numbers) in model.items()}
        check(read_safetensors(f"{target}/model.safetensors") == expected and not os.path.exists(f"{target}.tmp"),
              "which has the same bits")


def test_conversions(work):
    f32, f16, bf16 = (make_model(GPT2, dtype, i) for i, dtype in enumerate(("F32", "F16", "BF16"), 1))
    constants = {f"transformer.h.{i}.attn.bias": ones(1, 1, T, T) for i in range(L)}
    constants.update({"transformer.h.0.attn.masked_bias": ones(1), "lm_head.weight": f32["transformer.wte.weight"]})
    write_folder(f"{work}/f32", GPT2, {**f32, **constants}, "F32")
    write_folder(f"{work}/f16", GPT2, f16, "F16", shards=3, bare=True)
    write_folder(f"{work}/bf16", GPT2, bf16, "BF16", shards=2)
    convert("gpt2 to a folder", "1 rank", f"{work}/f32", f"{work}/f32.1", f32)
    convert("fp16 in three files, bare names, to a folder", "t=2", f"{work}/f16", f"{work}/f16.1", f16)
    convert("bf16 in two files to float32", "t=2 p=2 v=2", f"{work}/bf16", f"{work}/bf16.1", bf16)
    convert("bf16 to float32", "d=2", f"{work}/bf16", f"{work}/bf16.2", bf16, "--seq", "8")
    convert("gpt2 to a folder", "p=2", f"{work}/f32", f"{work}/f32.2", f32)
    check(ends_of(f"{work}/f32.1") == ["nothing"] * 3, "whose config.json has no ends of a text: none are written")
    for tied, name, dtype in ((False, "llama", "F32"), (True, "llama, tied", "BF16")):
        config = {**LLAMA, "tie_word_embeddings": tied}
        model = make_model(config, dtype, 4 + tied)
        inverse = {"model.layers.0.self_attn.rotary_emb.inv_freq": ones(C // NH // 2)}
        write_folder(f"{work}/{name}", config, {**model, **inverse}, dtype, bare=tied)
        for i, mesh in enumerate(["1 rank", "t=2"] if tied or not MPI else ["t=2 p=2 v=2"]):
            convert(name, mesh, f"{work}/{name}", f"{work}/{name}.{i}", model)
        written = json.loads(read(work, f"{name}.0", "config.json"))
        check(all(written[key] == value for key, value in config.items()), f"{name}: its config.json says the same")
    # What divides the optimizer's state is there in training only: a step that changes nothing, of numbers that it can
    # be computed with.
    small = {name: (shape, array("f", (x % 1 - 0.5 for x in numbers)))
             for name, (shape, numbers) in make_model(GPT2, "F16", 6).items()}
    write_folder(f"{work}/small", GPT2, small, "F32")
    write_shard(f"{work}/tokens.bin", [random.Random(1).randrange(V) for _ in range(2000)])
    convert("float32, trained with a rate of 0,", "d=2, ZeRO", f"{work}/small", f"{work}/small.1", small, "--data",
            f"{work}/tokens.bin", "--seq", "8", "--global-batch", "2", "--steps", "1", "--lr", "0", "--min-lr", "0",
            "--clip", "0", *QUIET)


def test_refused(work):
    for word, value, model in (("--layers", "3", "f32"), ("--hidden", "48", "f32"), ("--heads", "2", "f32"),
                               ("--ffn", "97", "f32"), ("--vocab", "68", "f32"), ("--seq", "17", "f32"),
                               ("--kv-heads", "4", "llama"), ("--arch", "llama", "f32"),
                               ("--model", "gpt2-124M", "f32")):
        refused("contradiction", 2, f"{word} {value}", "--init", f"{work}/{model}", word, value, "--steps", "0")
    write(GPT2, work, "foreign/config.json")
    write(b"PK\x03\x04" + bytes(200), work, "foreign/pytorch_model.bin")
    shutil.copytree(f"{work}/f32", f"{work}/text")
    write("{}", work, "text/tokenizer.json")
    shutil.copytree(f"{work}/f32", f"{work}/nested")
    os.mkdir(f"{work}/nested/generation_config.json")
    for what, word, name, *options in (
            ("a place that is taken", "already", "f32", "--export", f"{work}/f16"),
            ("a place that is not there", "cannot write", "f32", "--export", f"{work}/no/where"),
            ("a name of the hub, or of nothing", "hf download", "openai-community/gpt2"),
            ("a folder for a file", "generation_config.json", "nested", "--export", f"{work}/no"),
            ("another format", "save_pretrained", "foreign"),
            ("another format", "save_pretrained", "foreign/pytorch_model.bin"),
            ("a text, and a vocabulary that is none", "tokenizer.json", "text", "--data", __file__, "--steps", "1")):
        refused(what, 1, word, "--init", f"{work}/{name}", "--steps", "0", *options)
    check(not [name for name in os.listdir(work) if name.endswith(".tmp")], "nothing is left of what was refused")


# --init of a checkpoint: what it holds has to be what was written.
def test_checkpoints(work):
    runs("a checkpoint to start from", "--init", f"{work}/small", "--data", f"{work}/tokens.bin", "--seq", "8",
         "--global-batch", "2", "--micro-batch", "1", *QUIET, "--steps", "2", "--out", f"{work}/run")
    for ranks, mesh in ((1, []), (2, ["--tp", "2"]))[:1 + MPI]:
        damaged = f"{work}/damaged.{ranks}"
        shutil.copytree(f"{work}/run/step_00000002", damaged)
        options = ["--init", damaged, *mesh, "--steps", "0", "--export"]
        os.unlink(f"{damaged}/optimizer.safetensors")  # is never read here
        runs(f"--init of a checkpoint on {ranks} ranks", *options, f"{work}/from.{ranks}", ranks=ranks)
        change_byte(f"{damaged}/model.safetensors", "transformer.h.2.mlp.c_fc.weight")
        refused("one bit has changed", 1, "checksum", *options, f"{work}/no", ranks=ranks)
        check(not os.path.exists(f"{work}/no"), "which is not exported")
        os.unlink(f"{damaged}/trainer.json")
        runs("without trainer.json it is a folder like any other", *options, f"{work}/bit.{ranks}", ranks=ranks)
    damaged = f"{work}/run/step_00000002"
    write(read(damaged, "config.json").replace("1e-05", "2e-05"), damaged, "config.json")
    refused("a configuration that has changed", 1, "config.json: its checksum", "--init", damaged, "--steps", "0",
            "--export", f"{work}/no")


# ---- The files beside the model in a folder of Hugging Face's: of runs of one's own, and of initial weights ---------

BESIDE = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
STEP = "step_00000002"


def vocabulary(one="th", two="the", merges=("t h", "th e")):
    """The tokens of the bytes, and tokenizer.json as Hugging Face's library writes it: two merges, an end of text."""
    printable = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 255 and b != 173]
    others = [b for b in range(256) if b not in printable]
    bytes_of = {chr(b if b in printable else 256 + others.index(b)): b for b in range(256)}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    end = {"id": 258, "content": "<|endoftext|>", "single_word": False, "lstrip": False, "rstrip": False,
           "normalized": False, "special": True}
    return bytes_of, {"version": "1.0", "added_tokens": [end], "pre_tokenizer": level, "decoder": level,
                      "model": {"type": "BPE", "vocab": {**bytes_of, one: 256, two: 257}, "merges": list(merges)}}


def ends_of(*path):
    config = json.loads(read(*path, "config.json"))
    return [config.get(key, "nothing") for key in ("bos_token_id", "eos_token_id", "pad_token_id")]


def has(folder, files):
    return all(read(folder, name) == text for name, text in files.items())


# A text: tokens are bytes.
def test_whole_bytes(work):
    write("A text of one's own. " * 200, work, "text.txt")
    data, run, export = [*SIZE, "--data", f"{work}/text.txt"], f"{work}/bytes/{STEP}", f"{work}/bytes.export"
    runs("bytes", *data, "--steps", "2", "--out", f"{work}/bytes", "--export", export)
    check(set(os.listdir(export)) == BESIDE == set(os.listdir(run)) - {"trainer.json", "optimizer.safetensors"} and
          ends_of(run) == [None, None, "nothing"] and
          json.loads(read(run, "tokenizer.json"))["model"]["vocab"] == vocabulary()[0],
          "bytes: a checkpoint and an export have every file, the bytes' vocabulary, and no end of a text")
    runs("bytes: resumed on the text", *data, "--steps", "3", "--out", f"{work}/bytes", "--resume")
    check(has(f"{work}/bytes/step_00000003", {"tokenizer.json": read(run, "tokenizer.json")}), "with its vocabulary")
    runs("bytes: --init, on the text", *data, "--steps", "1", "--init", run)
    done = runs("bytes: --init continues a text", "--init", run, "--generate", "A te", "--max-new-tokens", "3")
    check(done and done.stdout.startswith("A te") and "no vocabulary" not in done.stderr, "with the bytes' vocabulary")


# Tokens of a vocabulary with an end.
def test_whole_vocabulary(work):
    tokenizer = vocabulary()[1]
    model, text = tokenizer["model"], json.dumps(tokenizer)
    pair = {"vocab.json": json.dumps({**model["vocab"], "<|endoftext|>": 258}),
            "merges.txt": "\n".join(["#version: 0.2", *model["merges"], ""])}
    for name, content in (("words/tokenizer.json", text), *((f"pair/{name}", pair[name]) for name in pair)):
        write(content, work, name)
    for folder in ("words", "pair"):
        write_shard(f"{work}/{folder}/tokens.bin", [random.Random(3).randrange(259) for _ in range(2000)])
    runs("a vocabulary", *SIZE, "--data", f"{work}/words/tokens.bin", "--steps", "2", "--out", f"{work}/own")
    run, export = f"{work}/own/{STEP}", f"{work}/pair.export"
    about = json.loads(read(run, "tokenizer_config.json"))
    check(ends_of(run) == [258, 258, "nothing"] and about["eos_token"] == about["bos_token"] == "<|endoftext|>" and
          about["model_max_length"] == 16 and has(run, {"tokenizer.json": text}), "its file as it was, and its end")
    runs("a vocabulary in two files", *SIZE, "--data", f"{work}/pair/tokens.bin", "--steps", "1", "--export", export)
    check(set(os.listdir(export)) == BESIDE - {"tokenizer.json"} | set(pair) and has(export, pair)
          and "GPT2Tokenizer" in read(export, "tokenizer_config.json"), "a vocabulary in two files: as they were")


# External weights, beside data with their vocabulary: their files stay, also when their checkpoint goes (--keep-last).
def test_whole_pretrained(work):
    source, data = f"{work}/source", [*SIZE, "--data", f"{work}/words/tokens.bin"]
    shutil.copytree(f"{work}/own/{STEP}", source)
    os.unlink(f"{source}/trainer.json")
    ends = {"bos_token_id": 3, "eos_token_id": [258, 4], "pad_token_id": -1}
    write({**json.loads(read(source, "config.json")), **ends}, source, "config.json")
    carried = {"generation_config.json": '{"eos_token_id": [258, 4, 9], "temperature": 0.6}',
               "tokenizer_config.json": '{"chat_template": "x"}',
               "special_tokens_map.json": '{"eos_token": "the"}', "chat_template.jinja": "{{ x }}"}
    for name, text in carried.items():
        write(text, source, name)
    keep, tuned = ["--save-every", "1", "--keep-last", "1"], f"{work}/tuned"
    runs("a model of others", *data, "--init", source, *keep, "--steps", "2", "--out", tuned)
    runs("a model of others: resumed without it", *data, *keep, "--steps", "5", "--out", tuned, "--resume",
         "--export", f"{tuned}.export")
    check(STEP not in os.listdir(tuned), "whose first checkpoint has gone")
    for folder in (f"{tuned}/step_00000005", f"{tuned}.export"):
        check(ends_of(folder) == list(ends.values()) and has(folder, carried),
              f"a model of others: all of its files are in {folder[len(work):]}")
    runs("a model of others: its file of weights alone", "--init", f"{source}/model.safetensors", *SIZE, "--vocab",
         "259", "--export", f"{work}/file.export")
    check(ends_of(f"{work}/file.export") == list(ends.values()), "with their ends")


# The source's files do not describe another vocabulary of the same size, nor one that a folder has beside its own.
def test_whole_other_vocabulary(work):
    source, tokens = f"{work}/source", f"{work}/words/tokens.bin"
    other = vocabulary("he", "the", ("h e", "t he"))[1]
    for name, text in (("others/tokenizer.json", other), ("words/another.json", other),
                       ("words/special_tokens_map.json", "{}")):
        write(text, work, name)
    shutil.copy(tokens, f"{work}/others")
    for number, options in enumerate((["--data", f"{work}/others/tokens.bin"],
                                      ["--data", tokens, "--tokenizer", f"{work}/words/another.json"])):
        out = f"{work}/other.{number}"
        runs("another vocabulary", *SIZE, *options, "--init", source, "--steps", "2", "--out", out)
        check('"he"' in read(out, STEP, "tokenizer.json")
              and "chat_template" not in read(out, STEP, "tokenizer_config.json")
              and not os.path.exists(f"{out}/{STEP}/special_tokens_map.json"), "takes nothing from the source's")
    # A vocabulary that is not read here goes along as it is.
    unread = {"tokenizer.json": '{"model": {"type": "Unigram"}}', "tokenizer.model": "\n\x0e\n",
              "tokenizer_config.json": '{"a": 1}'}
    shutil.copytree(source, f"{work}/unread")
    for name, text in unread.items():
        write(text, work, "unread", name)
    shutil.copy(tokens, f"{work}/plain.bin")
    runs("a vocabulary that is not read", *SIZE, "--data", f"{work}/plain.bin", "--init", f"{work}/unread", "--steps",
         "1", "--export", f"{work}/unread.export")
    check(has(f"{work}/unread.export", unread), "goes along")


# One name, other files: every rank has a folder of its own, in which it looks for --init.
def test_ranks_differ(work):
    into = 'cd "$0/${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" && exec "$@"'
    model = make_model(GPT2, "BF16", 7)
    meshes = ["--tp", "2"], ["--pp", "2"], []
    cases = (("nothing", lambda folder: None, meshes),
             ("a weight of one tensor", lambda folder:
              change_byte(f"{folder}/model.safetensors", "transformer.h.3.mlp.c_proj.bias"), meshes),
             ("eps", lambda folder: write({**GPT2, "layer_norm_epsilon": 1e-3}, folder, "config.json"), meshes[:1]),
             ("the vocabulary, which one has not", lambda folder: write("{}", folder, "tokenizer.json"), meshes[:1]),
             ("the weights, which one has not", lambda folder: os.unlink(f"{folder}/model.safetensors"), meshes[:1]),
             ("the folder, which one has not", shutil.rmtree, meshes[:1]))
    for number, (what, change, on) in enumerate(cases):
        for mesh in on:
            place = f"{work}/differ.{number}{''.join(mesh)}"
            for rank in (0, 1):
                write_folder(f"{place}/{rank}/model", GPT2, model, "BF16")
            change(f"{place}/1/model")
            done = launch("sh", "-c", into, place, TRAIN, *mesh, "--init", "model", "--steps", "0",
                          "--export", f"{place}/out", ranks=2)
            words = [line for line in done.stderr.split("\n") if line.startswith("train_gpt: ")]
            good = done.returncode == 0 if what == "nothing" else (
                done.returncode in (1, 2) and len(words) == 1 and "rank 1" in words[0])
            check(good and os.path.exists(f"{place}/out") == (what == "nothing"),
                  f"ranks differ in {what}, {' '.join(mesh) or 'd=2'}: {words}")


def test_strangers(work):
    """What an export has not made stays as it is, also what appears while it trains."""
    own = f"{work}/out.tmp/model.safetensors"
    write("mine", own)
    os.symlink("nowhere", f"{work}/link")
    for what, name in (("files of one's own", "out"), ("a link that leads nowhere", "link")):
        refused(what, 1, "already", *SIZE, "--steps", "1", "--export", f"{work}/{name}")
    check(read(own) == "mine", "which stay")
    path = f"{work}/later"
    run = subprocess.Popen([TRAIN, *SIZE, "--steps", "2000", "--export", path], stdout=subprocess.PIPE,
                           stderr=subprocess.PIPE, text=True)
    for line in run.stdout:
        if line.startswith("step ") and not os.path.exists(path):
            write("mine", path, "mine")
    check(run.wait(timeout=300) == 1 and read(path, "mine") == "mine" and os.path.isdir(f"{path}.tmp")
          and f"{path}.tmp" in run.stderr.read(), "what appears meanwhile is not replaced")


def main():
    with tempfile.TemporaryDirectory() as work:
        for test in (test_conversions, test_refused, test_checkpoints, test_whole_bytes, test_whole_vocabulary,
                     test_whole_pretrained, test_whole_other_vocabulary, test_strangers):
            test(work)
        if MPI:
            test_ranks_differ(work)
    finish()


main()
