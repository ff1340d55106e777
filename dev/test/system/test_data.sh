#!/bin/bash
# build/tokenize, as it is used: texts and JSONL become the right tokens, whatever the number of threads; what is wrong
# is reported, and leaves no half of a file. BIN: the folder of the programs (build/sanitized).
set -u
project=$PWD
. dev/test/system/checks.sh
bin=${BIN:-$PWD/${BUILD:-build}/sanitized} encode=$PWD/${BUILD:-build}/encode_file
gpt2=$PWD/dev/test/reference/tokenizer_gpt2.json
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1

tokenize() { "$bin/tokenize" --tokenizer "$gpt2" "$@"; }
# refuses WORD OPTIONS...: tokenize fails, and its message has WORD; refused: and it writes no file
refuses() { ! tokenize "${@:2}" >log 2>&1 && grep -qF -- "$1" log && ! grep -q "ERROR: \|runtime error" log; }
refused() { refuses "$@" --out refused && [ ! -e refused ] && [ ! -e refused.part ]; }
# The tokens of a shard of uint16, as a line.
shard() { tail -c +1025 "$1/train_000000.bin" | od -A n -v -t u2 -w2 | tr -d ' ' | tr '\n' ' '; }
# The tokens of standard input, by the program that the comparison with the public packages uses.
tokens() {
    cat >text
    "$encode" "$gpt2" text 2>/dev/null | od -A n -v -t d4 -w4 | tr -d ' ' | tr '\n' ' '
}
end=376 # <|endoftext|>, which stands before each document

printf 'a quick dog\n' >one.txt
verify "a text is a document" tokenize --data one.txt --out a
is "its tokens" "$end $(printf 'a quick dog\n' | tokens)" "$(shard a)"
tokenize --tokenizer a --data one.txt --out b >log 2>&1
verify "the vocabulary beside it makes the same shard" cmp {a,b}/train_000000.bin

mkdir pair
python3 -c 'import json, sys
whole = json.load(open(sys.argv[1]))
names = {**whole["model"]["vocab"], **{x["content"]: x["id"] for x in whole["added_tokens"]}}
json.dump(names, open("pair/vocab.json", "w"))
print("#version: 0.2", *map(" ".join, whole["model"]["merges"]), sep="\n", file=open("pair/merges.txt", "w"))
' "$gpt2"
tokenize --tokenizer pair/vocab.json --data one.txt --out p >log 2>&1
verify "a vocabulary in two files makes the same shard" cmp {a,p}/train_000000.bin
for file in merges.txt vocab.json; do verify "and is copied" cmp {pair,p}/$file; done

printf '{"text":"one\\n\\u00e9"}\n\n{"id":3,"text":""}\n{"text":"it'"'"'s \\"two\\"","more":[1]}\n' >x.jsonl
two="$(printf 'one\n\303\251' | tokens)$end $(printf 'it'"'"'s "two"' | tokens)"
verify "JSONL: a line is a document" tokenize --data x.jsonl --out c
is "JSONL: escapes are characters, empty texts are left out" "$end $two" "$(shard c)"

printf '\n one \n<|endoftext|>\n\n<|endoftext|>two<|endoftext|>' >stories.txt
verify "special tokens in a text are text" tokenize --data stories.txt --out f
is "as such" "$end $(tokens <stories.txt)" "$(shard f)"
verify "unless they are asked for" tokenize --data stories.txt --out g --special
is "which gives other tokens" "$end $(printf '\n one \n' | tokens)$end $(printf '\n\n' | tokens)$end $(printf two |
    tokens)$end " "$(shard g)"

# More than one part of a megabyte.
mkdir in
for _ in 1 2 3 4 5 6; do cat "$project"/dev/test/unit/*.c; done | head -c 2500000 >in/big.txt
cp x.jsonl in/
: >in/empty.txt
for threads in 1 2 5; do
    OMP_NUM_THREADS=$threads tokenize --data "in/*" --shard-tokens 300000 --val 0.3 --out t$threads >log 2>&1
done
verify "3 documents" grep -q "^3 documents of 3 files" log
verify "one of which validates" test -s t1/val_000000.bin
for threads in 2 5; do verify "the same shards with 1 and $threads threads" diff -r t1 t$threads; done
is "parts of a text have the tokens of the whole, in numbers of bytes" \
    $((1024 * $(find t1 -name '*.bin' | wc -l) + 2 * (2 + $(tokens <in/big.txt | wc -w) + $(wc -w <<<"$two")))) \
    "$(cat t1/*.bin | wc -c)"
verify "a pattern" tokenize --data "i*/*.jsonl" --out deep
verify "the file that is in one of them" cmp {deep,c}/train_000000.bin
verify "one text: its end is to validate on" tokenize --data in/big.txt --val 0.1 --out v
verify "about a tenth of it" test "$(wc -c <v/val_000000.bin)" -gt "$(($(wc -c <v/train_000000.bin) / 12))"
is "shards are full but for the last" 601024 "$(wc -c <t1/train_000000.bin)"

printf 'x\0y' >binary
verify "no data" refused nothing --data nothing
verify "an empty file" refused "train" --data in/empty.txt
verify "a binary file" refused "not a text" --data binary
printf '{"text":"a"}\n{"text":"b\n' >cut.jsonl
verify "JSON that is cut off" refused "cut.jsonl:2:" --data cut.jsonl
printf '{"text":"a"}\n{"txt":"b"}\n' >field.jsonl
verify "a field that is missing" refused "field.jsonl:2:1:" --data field.jsonl
verify "nothing left to validate on" refused "validate" --data x.jsonl --val 0.000001
verify "shards that are there already" refuses "exists" --data one.txt --out a
verify "are not touched" cmp {a,b}/train_000000.bin
verify "a wrong vocabulary" refuses "one.txt" --tokenizer one.txt --data one.txt --out w
finish
