#!/bin/bash
# build/tokenize, as it is used: texts and JSONL become the right tokens, whatever the number of threads; what is wrong
# is reported, and leaves no half of a file. BIN: the folder of the programs (build/sanitized).
set -u
. dev/test/system/checks.sh
bin=${BIN:-${BUILD:-build}/sanitized}
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
gpt2=dev/test/reference/tokenizer_gpt2.json

check() { # DESCRIPTION COMMAND...
    if "${@:2}"; then ok "$1"; else bad "$1" && cat "$folder/log" 2>/dev/null; fi
}

tokenize() { "$bin/tokenize" --tokenizer "$gpt2" "$@" >"$folder/log" 2>&1; }

# refuses WORD COMMAND...: it fails, and its message has WORD
refuses() {
    ! "${@:2}" && grep -qF -- "$1" "$folder/log" && ! grep -q "ERROR: \|runtime error" "$folder/log"
}
# refused WORD OPTIONS...: tokenize refuses them and writes no file
refused() {
    rm -rf "$folder/refused"
    refuses "$1" tokenize "${@:2}" --out "$folder/refused" && [ ! -e "$folder/refused" ] &&
        [ ! -e "$folder/refused.part" ]
}

# The tokens of a shard of uint16, as a line.
shard() { tail -c +1025 "$1" | od -A n -v -t u2 -w2 | tr -d ' ' | tr '\n' ' '; }

# The tokens of standard input, by the program that the comparison with the public packages uses.
tokens() {
    cat >"$folder/text"
    "${BUILD:-build}/encode_file" "$gpt2" "$folder/text" 2>/dev/null | od -A n -v -t d4 -w4 | tr -d ' ' | tr '\n' ' '
}

same() { [ "$1" = "$2" ] || { echo "      $1" | head -c 300; echo "      $2" | head -c 300; false; }; }

end=376 # <|endoftext|>

printf 'a quick dog\n' >"$folder/one.txt"
check "a text is a document" tokenize --data "$folder/one.txt" --out "$folder/a"
check "its tokens stand behind the token that parts documents" same "$(shard "$folder/a/train_000000.bin")" \
    "$end $(printf 'a quick dog\n' | tokens)"
"$bin/tokenize" --tokenizer "$folder/a" --data "$folder/one.txt" --out "$folder/b" >"$folder/log" 2>&1
check "the vocabulary beside it makes the same shard" cmp "$folder/a/train_000000.bin" "$folder/b/train_000000.bin"

mkdir "$folder/pair"
python3 -c 'import json, sys
whole, folder = json.load(open(sys.argv[1])), sys.argv[2]
names = {**whole["model"]["vocab"], **{x["content"]: x["id"] for x in whole["added_tokens"]}}
json.dump(names, open(folder + "/vocab.json", "w"))
print("#version: 0.2", *map(" ".join, whole["model"]["merges"]), sep="\n", file=open(folder + "/merges.txt", "w"))
' "$gpt2" "$folder/pair"
tokenize --tokenizer "$folder/pair/vocab.json" --data "$folder/one.txt" --out "$folder/p"
check "a vocabulary in two files makes the same shard" cmp "$folder/a/train_000000.bin" "$folder/p/train_000000.bin"
check "and is copied" cmp "$folder/pair/merges.txt" "$folder/p/merges.txt"
check "both files" cmp "$folder/pair/vocab.json" "$folder/p/vocab.json"

printf '{"text":"one\\n\\u00e9"}\n\n{"id":3,"text":""}\n{"text":"it'"'"'s \\"two\\"","more":[1]}\n' >"$folder/x.jsonl"
check "JSONL: a line is a document" tokenize --data "$folder/x.jsonl" --out "$folder/c"
check "JSONL: escapes are characters, empty texts are left out" same "$(shard "$folder/c/train_000000.bin")" \
    "$end $(printf 'one\n\303\251' | tokens)$end $(printf 'it'"'"'s "two"' | tokens)"

printf '\n one \n<|endoftext|>\n\n<|endoftext|>two<|endoftext|>' >"$folder/stories.txt"
check "special tokens in a text are text" tokenize --data "$folder/stories.txt" --out "$folder/f"
check "unless they are asked for" tokenize --data "$folder/stories.txt" --out "$folder/g" --special
check "which gives other tokens" same "$(shard "$folder/g/train_000000.bin")" \
    "$end $(printf '\n one \n' | tokens)$end $(printf '\n\n' | tokens)$end $(printf two | tokens)$end "
check "than the first" same "$(shard "$folder/f/train_000000.bin")" "$end $(tokens <"$folder/stories.txt")"

# More than one part of a megabyte.
mkdir "$folder/in"
for i in 1 2 3 4 5 6; do cat dev/test/unit/*.c; done | head -c 2500000 >"$folder/in/big.txt"
cp "$folder/x.jsonl" "$folder/in/"
printf 'x\0y' >"$folder/binary"
: >"$folder/in/empty.txt"
for threads in 1 2 5; do
    OMP_NUM_THREADS=$threads tokenize --data "$folder/in/*" --shard-tokens 300000 --val 0.3 --out "$folder/t$threads"
done
check "3 documents" grep -q "^3 documents of 3 files" "$folder/log"
check "one of which validates" test -s "$folder/t1/val_000000.bin"
check "the same shards with 1 and 2 threads" diff -r "$folder/t1" "$folder/t2"
check "the same shards with 1 and 5 threads" diff -r "$folder/t1" "$folder/t5"
check "parts of a text have the tokens of the whole" same \
    "$(cat "$folder"/t1/train_*.bin "$folder"/t1/val_*.bin | wc -c)" \
    "$(($(ls "$folder"/t1/*.bin |
    wc -l) * 1024 + 2 * (3 + $(tokens <"$folder/in/big.txt" | wc -w) + $(printf 'one\n\303\251' | tokens |
    wc -w) + $(printf 'it'"'"'s "two"' | tokens | wc -w))))"
check "a pattern" tokenize --data "$folder/i*/*.jsonl" --out "$folder/deep"
check "the file that is in one of them" cmp "$folder/deep/train_000000.bin" "$folder/c/train_000000.bin"
check "one text: its end is to validate on" tokenize --data "$folder/in/big.txt" --val 0.1 --out "$folder/v"
check "about a tenth of it" test "$(wc -c <"$folder/v/val_000000.bin")" \
    -gt "$(($(wc -c <"$folder/v/train_000000.bin") / 12))"
check "shards are full but for the last" test "$(wc -c <"$folder/t1/train_000000.bin")" = 601024

gzip -c "$folder/one.txt" >"$folder/one.gz"
check "no data" refused "$folder/nothing" --data "$folder/nothing"
check "an empty file" refused "train" --data "$folder/in/empty.txt"
check "a binary file" refused "not a text" --data "$folder/binary"
check "a packed file" refused "not a text" --data "$folder/one.gz"
printf '{"text":"a"}\n{"text":"b\n' >"$folder/cut.jsonl"
check "JSON that is cut off" refused "cut.jsonl:2:" --data "$folder/cut.jsonl"
printf '{"text":"a"}\n{"txt":"b"}\n' >"$folder/field.jsonl"
check "a field that is missing" refused "field.jsonl:2:1:" --data "$folder/field.jsonl"
check "nothing left to validate on" refused "validate" --data "$folder/x.jsonl" --val 0.000001
check "shards that are there already" refuses "exists" tokenize --data "$folder/one.txt" --out "$folder/a"
check "are not touched" cmp "$folder/a/train_000000.bin" "$folder/b/train_000000.bin"
check "a wrong vocabulary" refuses "Makefile" tokenize --tokenizer Makefile --data Makefile \
    --out "$folder/w"
finish
