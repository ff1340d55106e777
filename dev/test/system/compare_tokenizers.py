#!/usr/bin/env python3
"""
compare_tokenizers.py: the same texts to the same tokens as tiktoken and Hugging Face's tokenizers? And how fast, side
by side?

    make compare_tokenizers VOCAB="FILE ..."
    python3 dev/test/system/compare_tokenizers.py build/encode_file FILE...

Needs: pip install tiktoken tokenizers. FILE: vocabularies as dataloader/tokenizer.h reads them
(tokenizer.json, vocab.json with merges.txt beside it); none are shipped. Without any, two are made here by Hugging
Face's trainer. tiktoken takes part for vocab.json.

Texts, more than 10 MB: what is on this machine of languages (/usr/share), code (/usr/include, Python's own), then every
character of Unicode alone and between others, characters drawn at random from classes that the expressions tell apart,
and bytes that are not UTF-8. The peers take only text: each broken byte goes to them as a character for private use,
which is neither letter nor number, for tokenizers to cut the text into words; of the words tiktoken merges the bytes
that they were. One line a check; last "N passed, N failed".
"""
import glob, gzip, json, os, random, re, subprocess, sys, tempfile, time

import tiktoken
import tokenizers

sys.dont_write_bytecode = True
from checks import check, finish

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| "
          r"?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")



def letters():
    """GPT-2's letters of bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    other = [b for b in range(256) if b not in printable]
    return {**{b: chr(b) for b in printable}, **{b: chr(256 + i) for i, b in enumerate(other)}}


LETTER = letters()
BYTE = {c: b for b, c in LETTER.items()}


# ---- Texts -----------------------------------------------------------------------------------------------------------

def collected(patterns, most):
    """Files in the order of their names, up to a number of bytes; what is not UTF-8 is replaced."""
    data, seen = [], 0
    for pattern in patterns:
        for path in sorted(glob.glob(pattern, recursive=True)):
            if seen >= most or not os.path.isfile(path):
                continue
            try:
                with (gzip.open if path.endswith(".gz") else open)(path, "rb") as f:
                    text = f.read(400_000)
            except OSError:
                continue
            if b"\0" not in text:
                data.append(text.decode("utf-8", "replace"))
                seen += len(text)
    return "".join(data)


def every_character():
    """Each character alone, and after and before a letter, a number, a blank, a point, an apostrophe and a new line."""
    rng = random.Random(1)
    codes = [c for c in range(sys.maxunicode + 1) if not 0xD800 <= c < 0xE000]
    used = [c for c in codes if c < 0x20000 or c >= 0xE0000 or c % 16 == 0]
    return "".join(rng.choice(("a", "1", " ", ".", "'", "\n", " a", "  ", "")) + chr(c) for c in used)


def drawn(rng, n):
    """Characters from the classes that the expressions tell apart."""
    classes = (" ", " ", "\n", "\r", "\t", "\x0b", "\x85", "\u2028", "\u00a0", "\u3000", "a", "S", "t", "re", "LL",
               "ve", "\u017f", "\u212a",
               "'", "'", "'s", "'T", "\u00e9", "\u4e2d", "\u0301", "1", "2", "\u0663", "\u2167", "\u00bd", ".", "!",
               "_", "\U0001f600", "\0", "\x1c", "\u200b",
               "\ufeff", "\u0149", "\ufb05", "<|endoftext|>", "<|eot_id|>", "x" * 40, " " * 30)
    return "".join(rng.choices(classes, k=n))


def texts():
    rng = random.Random(2)
    result = {
        "code": collected(["/usr/include/*.h", "/usr/include/linux/*.h", "/usr/lib/python3/**/*.py",
                           "/usr/lib/python3*/*.py"], 5_000_000),
        "languages": collected(["/usr/share/i18n/locales/*", "/usr/share/i18n/charmaps/*.gz",
                                "/usr/lib/python3*/test/*.txt",
                                "/usr/share/perl5/**/*.pl", "/usr/share/perl/*/unicore/**/*",
                                "/usr/share/vim/vim*/tutor/*",
                                "/usr/share/locale/**/*", "/usr/share/doc/**/*", "/usr/share/zoneinfo/*.tab"],
                               8_000_000),
        "every character": every_character(),
        "random classes": drawn(rng, 300_000),
        "long words": "a" * 20_000 + " " + "ab" * 20_000 + " " * 5_000 + "1" * 5_000 + "\n" * 5_000 + "." * 5_000 +
        "\u4e2d" * 5_000,
        "a blank at the end": "the end \n \n  ",
    }
    for i in range(300):
        result[f"random {i}"] = drawn(rng, rng.randrange(1, 12))
    return result


PRIVATE = re.compile("[\U000F0080-\U000F00FF]")  # what stands for a broken byte below


def broken_bytes(rng, text):
    """A text of which some bytes are wrong, missing, or too many."""
    data = bytearray(PRIVATE.sub("", text).encode())
    for _ in range(len(data) // 20):
        at = rng.randrange(len(data))
        if rng.random() < 0.6:
            data[at] = rng.choice((0x80, 0xBF, 0xC0, 0xC1, 0xE0, 0xED, 0xF0, 0xF4, 0xF5, 0xFF, rng.randrange(256)))
        elif rng.random() < 0.5:
            del data[at]
        else:
            data.insert(at, rng.randrange(256))
    return bytes(data)


# ---- Vocabularies, as the peers load them ----------------------------------------------------------------------------

class Peer:
    """A vocabulary, by the peers that can read it: name -> function from text to tokens (special tokens are text)."""

    def __init__(self, path):
        self.path, self.peers, self.bytes_of, self.special = path, {}, None, {}
        with open(path, encoding="utf-8") as f:
            data = json.load(f)
        if isinstance(data.get("model"), dict):  # "model" is a token, too
            self.from_tokenizer_json(data)
        else:
            self.from_names(data)

    def use_hugging_face(self, tokenizer):
        self.hugging_face = tokenizer
        plain = tokenizers.Tokenizer.from_str(tokenizer.to_str())
        plain.encode_special_tokens = True
        self.peers["tokenizers"] = lambda text: plain.encode(text, add_special_tokens=False).ids
        self.special_peer = lambda text: tokenizer.encode(text, add_special_tokens=False).ids

    def use_tiktoken(self, ranks, special):
        encoding = tiktoken.Encoding("it", pat_str=GPT2, mergeable_ranks=ranks, special_tokens=special)
        self.peers["tiktoken"] = encoding.encode_ordinary
        self.special_peer = lambda text: encoding.encode(text, allowed_special="all")
        self.word = encoding.encode_single_token, encoding

    def from_tokenizer_json(self, data):
        self.use_hugging_face(tokenizers.Tokenizer.from_file(self.path))
        merges = [m.split(" ") if isinstance(m, str) else m for m in data["model"]["merges"]]
        self.bytes_of = data["model"]["vocab"], merges

    def from_names(self, names):
        folder = os.path.dirname(self.path)
        t = tokenizers.Tokenizer(tokenizers.models.BPE.from_file(self.path, os.path.join(folder, "merges.txt")))
        t.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        t.add_special_tokens(["<|endoftext|>"])
        self.use_hugging_face(t)
        ranks = {bytes(BYTE[c] for c in name): i for name, i in names.items() if name != "<|endoftext|>"}
        self.use_tiktoken(ranks, {"<|endoftext|>": 50256})


def made_vocabularies(folder):
    """Two that Hugging Face's trainer makes from this machine's headers."""
    files = sorted(glob.glob("/usr/include/*.h"))[:150]
    paths = []
    for name, pre in (("gpt2", tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)),
                      ("llama3", tokenizers.pre_tokenizers.Sequence([
                          tokenizers.pre_tokenizers.Split(tokenizers.Regex(LLAMA3), "isolated", False),
                          tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]))):
        t = tokenizers.Tokenizer(tokenizers.models.BPE())
        t.pre_tokenizer = pre
        t.decoder = tokenizers.decoders.ByteLevel()
        t.train(files, tokenizers.trainers.BpeTrainer(vocab_size=4000, special_tokens=["<|endoftext|>"],
                                                      show_progress=False,
                                                      initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet()))
        paths.append(os.path.join(folder, f"{name}.json"))
        t.save(paths[-1])
    return paths


# ---- The comparison --------------------------------------------------------------------------------------------------

class Ours:
    def __init__(self, program, path, folder):
        self.command, self.text = [program, path], os.path.join(folder, "text")

    def __call__(self, data, *more):
        with open(self.text, "wb") as f:
            f.write(data)
        run = subprocess.run([*self.command, self.text, *more], capture_output=True, check=True)
        self.seconds = float(run.stderr)
        return list(memoryview(run.stdout).cast("i"))


def first_difference(ours, theirs):
    at = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))
    return f"differ from token {at} on: {ours[at:at + 5]} and {theirs[at:at + 5]}"


def compare(ours, peer, name, data):
    """Joined short texts are compared one by one, the others as a whole."""
    for who, encode in peer.peers.items():
        got, wanted = ours(data.encode()), encode(data)
        check(got == wanted, f"{peer.path}: {name}, {len(data.encode())} bytes: {len(got)} tokens as {who}'s"
              if got == wanted else
              f"{peer.path}: {name} {data[:60]!r}: {who}: {first_difference(got, wanted)}")


def compare_broken(ours, peer, data):
    if "tiktoken" not in peer.peers:
        return
    encoding = peer.word[1]
    private = {0xDC00 + b: 0xF0000 + b for b in range(128, 256)}
    text = data.decode("utf-8", "surrogateescape").translate(private)
    split = tokenizers.pre_tokenizers.Split(tokenizers.Regex(GPT2), "isolated", False)
    back = {c: b for b, c in private.items()}
    words = [w.translate(back).encode("utf-8", "surrogateescape") for w, _ in split.pre_tokenize_str(text)]
    memory = {}
    wanted = []
    for w in words:
        if w not in memory:
            memory[w] = encoding._core_bpe.encode_single_piece(w)
        wanted += memory[w]
    got = ours(data)
    check(got == wanted, f"{peer.path}: {len(data)} bytes that are not UTF-8: " +
          (f"{len(got)} tokens" if got == wanted else first_difference(got, wanted)))


def measure(ours, peer, data):
    ours(data.encode(), "5")
    print(f"      {peer.path}: {len(data.encode()) / ours.seconds / 1e6:.1f} MB/s here", end="")
    for who, encode in peer.peers.items():
        best = min(timed(encode, data) for _ in range(2))
        print(f", {len(data.encode()) / best / 1e6:.1f} MB/s {who} ({best / ours.seconds:.1f} times as long)", end="")
    print(flush=True)


def timed(encode, data):
    start = time.perf_counter()
    encode(data)
    return time.perf_counter() - start


def main():
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    corpus = texts()
    print(f"tiktoken {tiktoken.__version__}, tokenizers {tokenizers.__version__}, "
          f"{sum(len(t.encode()) for t in corpus.values())} bytes of texts")
    with tempfile.TemporaryDirectory() as folder:
        for path in sys.argv[2:] or made_vocabularies(folder):
            peer, ours = Peer(path), Ours(sys.argv[1], path, folder)
            for name, text in corpus.items():
                compare(ours, peer, name, text)
            special = drawn(random.Random(3), 50_000)
            check(ours(special.encode(), "special") == peer.special_peer(special),
                  f"{path}: special tokens that are wanted")
            text = corpus["languages"][:1_500_000] + corpus["every character"][:300_000]
            compare_broken(ours, peer, broken_bytes(random.Random(4), text))
            measure(ours, peer, corpus["code"][:5_000_000])
            measure(ours, peer, corpus["languages"][:5_000_000])
    finish()


if __name__ == "__main__":
    main()
