#!/usr/bin/env python3
"""
compare_tokenizers.py: the same texts to the same tokens as Hugging Face's tokenizers?

    make compare_tokenizers VOCAB="FILE ..."
    python3 dev/test/system/compare_tokenizers.py build/encode_file FILE...

Needs: pip install tokenizers. FILE: a tokenizer.json (vocab.json with merges.txt: test_data.sh); none are shipped.
Without any, two are made here by Hugging Face's trainer.

Texts, more than 10 MB: what is on this machine of languages (/usr/share), code (/usr/include, Python's own), then every
character of Unicode alone and between others, and characters drawn at random from classes that the expressions tell
apart. Bytes that are not UTF-8: test_tokenizer.c. One line a check; last "N passed, N failed".
"""
import glob, gzip, os, random, subprocess, sys, tempfile

import tokenizers

from checks import check, finish

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| "
          r"?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def collected(patterns, most):
    """Files in the order of their names, up to a number of bytes; what is not UTF-8 is replaced."""
    data, seen = [], 0
    for pattern in patterns:
        for path in sorted(glob.glob(pattern, recursive=True)):
            if seen >= most or not os.path.isfile(path):
                continue
            with (gzip.open if path.endswith(".gz") else open)(path, "rb") as f:
                text = f.read(400_000)
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
               "ve", "\u017f", "\u212a", "'", "'", "'s", "'T", "\u00e9", "\u4e2d", "\u0301", "1", "2", "\u0663",
               "\u2167", "\u00bd", ".", "!", "_", "\U0001f600", "\0", "\x1c", "\u200b", "\ufeff", "\u0149", "\ufb05",
               "<|endoftext|>", "<|eot_id|>", "x" * 40, " " * 30)
    return "".join(rng.choices(classes, k=n))


def texts():
    rng = random.Random(2)
    code = ["/usr/include/*.h", "/usr/include/linux/*.h", "/usr/lib/python3/**/*.py", "/usr/lib/python3*/*.py"]
    languages = ["i18n/locales/*", "i18n/charmaps/*.gz", "../lib/python3*/test/*.txt", "perl5/**/*.pl",
                 "perl/*/unicore/**/*", "vim/vim*/tutor/*", "locale/**/*", "doc/**/*", "zoneinfo/*.tab"]
    return {
        "code": collected(code, 5_000_000),
        "languages": collected([f"/usr/share/{pattern}" for pattern in languages], 8_000_000),
        "every character": every_character(), "random classes": drawn(rng, 300_000),
        "long words": "a" * 20_000 + " " + "ab" * 20_000 + " " * 5_000 + "1" * 5_000 + "\n" * 5_000 + "." * 5_000 +
        "\u4e2d" * 5_000, "a blank at the end": "the end \n \n  ",
        **{f"random {i}": drawn(rng, rng.randrange(1, 12)) for i in range(300)}}


def made_vocabularies(folder):
    """Two that Hugging Face's trainer makes from this machine's headers."""
    files, before = sorted(glob.glob("/usr/include/*.h"))[:150], tokenizers.pre_tokenizers
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=4000, special_tokens=["<|endoftext|>"], show_progress=False,
                                             initial_alphabet=before.ByteLevel.alphabet())
    paths = {f"{folder}/gpt2.json": before.ByteLevel(add_prefix_space=False),
             f"{folder}/llama3.json": before.Sequence([
                 before.Split(tokenizers.Regex(LLAMA3), "isolated", False),
                 before.ByteLevel(add_prefix_space=False, use_regex=False)])}
    for path, pre_tokenizer in paths.items():
        t = tokenizers.Tokenizer(tokenizers.models.BPE())
        t.pre_tokenizer = pre_tokenizer
        t.train(files, trainer)
        t.save(path)
    return paths


def compare(what, command, text, peer, *special):
    with tempfile.NamedTemporaryFile() as f:
        f.write(text.encode())
        f.flush()
        printed = subprocess.run([*command, f.name, *special], stdout=subprocess.PIPE, check=True).stdout
    got, wanted = list(memoryview(printed).cast("i")), peer.encode(text, add_special_tokens=False).ids
    at = next((i for i, (a, b) in enumerate(zip(got, wanted)) if a != b), min(len(got), len(wanted)))
    check(got == wanted, f"{what}: {len(got)} tokens, the same up to {at}: {got[at:at + 5]} and {wanted[at:at + 5]}")


def main():
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    corpus = texts()
    with tempfile.TemporaryDirectory() as folder:
        for path in sys.argv[2:] or made_vocabularies(folder):
            command, special = [sys.argv[1], path], tokenizers.Tokenizer.from_file(path)
            plain = tokenizers.Tokenizer.from_str(special.to_str())
            plain.encode_special_tokens = True  # as text
            for name, text in corpus.items():
                compare(f"{path}: {name}", command, text, plain)
            text = drawn(random.Random(3), 50_000)
            compare(f"{path}: special tokens that are wanted", command, text, special, "special")
    finish()


if __name__ == "__main__":
    main()
