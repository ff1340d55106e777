#!/usr/bin/env python3
"""
make_tokenizer.py: what the public packages make of short texts, for dev/test/unit/test_tokenizer.c.

    pip install tiktoken tokenizers; python3 dev/test/reference/make_tokenizer.py

Writes to dev/test/reference/: tokenizer_gpt2.json and tokenizer_llama3.json, two vocabularies that Hugging Face's
trainer makes of TEXT, and tokenizer_cases.txt: lines of the split's name, a text in hexadecimal, and its tokens by
tokenizers (gpt2 also by tiktoken, which has to agree); "special" are gpt2's with special tokens found. Of bytes that
are no UTF-8 tiktoken merges the words that tokenizers finds. tokenizer_words.txt has the words of such texts by
tokenizers: the split's name, the text, and the words' lengths in bytes, which show cuts that no token of a small
vocabulary would cross.
"""
import json, os, random, sys

import tiktoken
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

FOLDER = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(FOLDER, "../system"))
from compare_tokenizers import GPT2, LLAMA3, drawn

QWEN2 = LLAMA3.replace("{1,3}", "")
TEXT = """The quick brown fox jumps over the lazy dog. It's what we've said, isn't it? They'll say I'm late; I'd say \
you're right.
Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. Voilà, où est-ce que l'été a passé ? El niño comió \
piñas.
Съешь же ещё этих мягких французских булок, да выпей чаю. Ξεσκεπάζω την ψυχοφθόρα βδελυγμία.
いろはにほへと ちりぬるを 我輩は猫である。名前はまだ無い。 天地玄黄，宇宙洪荒。 다람쥐 헌 쳇바퀴에 타고파.
نص حكيم له سر قاطع وذو شأن عظيم ١٢٣ ऋषियों को सताने वाले दुष्ट राक्षसों के राजा १२३
for (int i = 0; i < n; i++) {\n    if (a[i] != b[i]) return false;\n\tsum += 3.14159 * a[i];\n}\n
int main(void) { printf("%d\\n", 1234567890); return 0; }  // 0x7fffffff, 1e-10, 2024-01-31
if __name__ == "__main__":\n    print("hello, world", file=sys.stderr)\n\n\n
aaa aaaa aaaaa aaaaaa ababab abababab =========== ------------ ........
"""

PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]  # GPT-2's letters of bytes
BYTE = {chr(b): b for b in PRINTABLE}
BYTE.update({chr(256 + i): b for i, b in enumerate(b for b in range(256) if b not in PRINTABLE)})

def broken_bytes(rng, text):
    """A text of which some bytes are wrong, missing, or too many."""
    data = bytearray(text.encode())
    for _ in range(len(data) // 20):
        at = rng.randrange(len(data))
        if rng.random() < 0.6:
            data[at] = rng.choice((0x80, 0xBF, 0xC0, 0xC1, 0xE0, 0xED, 0xF0, 0xF4, 0xF5, 0xFF, rng.randrange(256)))
        elif rng.random() < 0.5:
            del data[at]
        else:
            data.insert(at, rng.randrange(256))
    return bytes(data)

def train(pre, vocab):
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre
    t.train_from_iterator([TEXT], trainers.BpeTrainer(vocab_size=vocab, min_frequency=2, special_tokens=[],
                                                      show_progress=False,
                                                      initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    t.add_special_tokens(["<|endoftext|>"])
    return t

def by_split(pattern):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated", False),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])

def ranks_of(t):
    names = json.loads(t.to_str())["model"]["vocab"]
    return {bytes(BYTE[c] for c in name): i for name, i in names.items()}

def words_of(pattern, data):
    """The words of any bytes: broken ones are characters for private use where the words are found."""
    private = {0xDC00 + b: 0xF0000 + b for b in range(128, 256)}
    back = {c: b for b, c in private.items()}
    words = pre_tokenizers.Split(Regex(pattern), "isolated",
                                 False).pre_tokenize_str(data.decode("utf-8", "surrogateescape").translate(private))
    return [w.translate(back).encode("utf-8", "surrogateescape") for w, _ in words]

def main():
    gpt2, llama3 = train(pre_tokenizers.ByteLevel(add_prefix_space=False), 420), train(by_split(LLAMA3), 420)
    plain = {}
    for name, t in (("gpt2", gpt2), ("llama3", llama3), ("qwen2", llama3)):
        plain[name] = Tokenizer.from_str(t.to_str())
        plain[name].encode_special_tokens = True
    plain["qwen2"].pre_tokenizer = by_split(QWEN2)
    special = {"<|endoftext|>": max(ranks_of(llama3).values()) + 1}
    merging, other = (tiktoken.Encoding("it", pat_str=GPT2, mergeable_ranks=ranks_of(t), special_tokens=special)
                      for t in (llama3, gpt2))
    rng = random.Random(5)
    texts = [line + "\n" for line in TEXT.splitlines()] + [drawn(rng, rng.randrange(1, 12)) for _ in range(150)]
    texts += ["it's IT'S It'\u017f 'ſ 'LL 'Re", "a \n \n  ", "a\n\n b", " \t x", "x\r\n\r\ny", "  1234567 12", "'",
              "''s", " '", "a'", "\u3000\u3000x", ""]
    lines = []
    for text in texts:
        for name, t in plain.items():
            ids = t.encode(text).ids
            lines.append((name, text.encode(), ids))
            assert name != "gpt2" or ids == other.encode_ordinary(text), text
        lines.append(("special", text.encode(), gpt2.encode(text).ids))
    texts += [f"{quote}{ending}{after}" for quote in ("a'", " '", "'") for after in ("", "x", " ", "1", "!")
              for ending in ("s", "t", "m", "d", "re", "ve", "ll", "S", "T", "M", "D", "RE", "Ve", "lL", "\u017f", "r",
                             "v", "l", "le", "x")]
    words = [(name, t) for t in map(str.encode, texts) for name in ("gpt2", "llama3", "qwen2")]
    patterns = {"gpt2": GPT2, "llama3": LLAMA3, "qwen2": QWEN2}
    for _ in range(40):
        data = broken_bytes(rng, drawn(rng, 12) * 2)
        words += [(name, data) for name in patterns]
        for name, encoding in (("llama3", merging), ("gpt2", other)):
            pieces = [encoding._core_bpe.encode_single_piece(w) for w in words_of(patterns[name], data)]
            lines.append((name, data, sum(pieces, [])))
    for name, t in (("gpt2", gpt2), ("llama3", llama3)):
        t.save(os.path.join(FOLDER, f"tokenizer_{name}.json"), pretty=False)
    lengths = [(name, data, map(len, words_of(patterns[name], data))) for name, data in words]
    for file, rows in (("tokenizer_cases.txt", lines), ("tokenizer_words.txt", lengths)):
        with open(os.path.join(FOLDER, file), "w", encoding="ascii") as f:
            for name, data, numbers in rows:
                f.write(f"{name} {data.hex() or '-'} {' '.join(map(str, numbers))}\n")

if __name__ == "__main__":
    main()
