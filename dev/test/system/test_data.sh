#!/bin/bash
# build/tokenize, as it is used: texts, JSONL, folders and what is between documents become the right tokens, whatever
# the number of threads; what is wrong is reported, and leaves no half of a file. BIN: the folder of the programs
# (build/sanitized).
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
    refuses "$1" tokenize "${@:2}" --out "$folder/refused" && [ -z "$(ls "$folder/refused" 2>/dev/null)" ]
}

# The tokens of a shard of uint16, as a line.
shard() { tail -c +1025 "$1" | od -A n -v -t u2 -w2 | tr -d ' ' | tr '\n' ' '; }

# The tokens of standard input, by the program that the comparison with the public packages uses.
tokens() {
    cat >"$folder/text"
    "${BUILD:-build}/encode_file" "$gpt2" - "$folder/text" 2>/dev/null | od -A n -v -t d4 -w4 | tr -d ' ' | tr '\n' ' '
}

same() { [ "$1" = "$2" ] || { echo "      $1" | head -c 300; echo "      $2" | head -c 300; false; }; }

end=376 # <|endoftext|>

printf 'a quick dog\n' >"$folder/one.txt"
check "a text is a document" tokenize --data "$folder/one.txt" --out "$folder/a"
check "its tokens stand behind the token that parts documents" same "$(shard "$folder/a/train_000000.bin")" \
    "$end $(printf 'a quick dog\n' | tokens)"
"$bin/tokenize" --tokenizer "$folder/a" --data "$folder/one.txt" --out "$folder/b" >"$folder/log" 2>&1
check "the vocabulary beside it makes the same shard" cmp "$folder/a/train_000000.bin" "$folder/b/train_000000.bin"

printf '{"text":"one\\n\\u00e9"}\n\n{"id":3,"text":""}\n{"text":"it'"'"'s \\"two\\"","more":[1]}\n' >"$folder/x.jsonl"
check "JSONL: a line is a document" tokenize --data "$folder/x.jsonl" --out "$folder/c"
check "JSONL: escapes are characters, empty texts are left out" same "$(shard "$folder/c/train_000000.bin")" \
    "$end $(printf 'one\n\303\251' | tokens)$end $(printf 'it'"'"'s "two"' | tokens)"
check "without the token between documents" tokenize --data "$folder/x.jsonl" --out "$folder/d" --no-document-token
check "documents follow each other" same "$(shard "$folder/d/train_000000.bin")" \
    "$(printf 'one\n\303\251' | tokens)$(printf 'it'"'"'s "two"' | tokens)"

printf '\n one \n<|endoftext|>\n\n<|endoftext|>two<|endoftext|>' >"$folder/stories.txt"
check "a delimiter" tokenize --data "$folder/stories.txt" --delimiter "<|endoftext|>" --out "$folder/e"
check "white space around it goes with it, what is empty is left out" same "$(shard "$folder/e/train_000000.bin")" \
    "$end $(printf one | tokens)$end $(printf two | tokens)"
check "special tokens in a text are text" tokenize --data "$folder/stories.txt" --out "$folder/f"
check "unless they are asked for" tokenize --data "$folder/stories.txt" --out "$folder/g" --special
check "which gives other tokens" same "$(shard "$folder/g/train_000000.bin")" \
    "$end $(printf '\n one \n' | tokens)$end $(printf '\n\n' | tokens)$end $(printf two | tokens)$end "
check "than the first" same "$(shard "$folder/f/train_000000.bin")" "$end $(tokens <"$folder/stories.txt")"

# A folder with more than one part of a megabyte, of all kinds.
mkdir -p "$folder/in/below" "$folder/in/.hidden"
for i in 1 2 3 4 5 6; do cat dev/test/unit/*.c; done | head -c 2500000 >"$folder/in/big.txt"
cp "$folder/x.jsonl" "$folder/in/below/"
cp "$folder/one.txt" "$folder/in/.hidden/"
printf 'x\0y' >"$folder/in/binary"
ln -s .. "$folder/in/below/back"
: >"$folder/in/empty"
seed=1 # draws one of the three documents
for threads in 1 2 5; do
    tokenize --data "$folder/in" --threads $threads --shard-tokens 300000 --val 0.4 --seed $seed \
        --out "$folder/t$threads"
done
check "a folder: 3 documents, 2 files left out" grep -q "^3 documents of 2 files (2 others left out)" "$folder/log"
check "the same shards with 1 and 2 threads" diff -r "$folder/t1" "$folder/t2"
check "the same shards with 1 and 5 threads" diff -r "$folder/t1" "$folder/t5"
check "parts of a text have the tokens of the whole" same \
    "$(cat "$folder"/t1/train_*.bin "$folder"/t1/val_*.bin | wc -c)" \
    "$(($(ls "$folder"/t1/*.bin |
    wc -l) * 1024 + 2 * (3 + $(tokens <"$folder/in/big.txt" | wc -w) + $(printf 'one\n\303\251' | tokens |
    wc -w) + $(printf 'it'"'"'s "two"' | tokens | wc -w))))"
check "** is any folders" tokenize --data "$folder/in/**/*.jsonl" --out "$folder/deep"
check "the file that is in one of them" cmp "$folder/deep/train_000000.bin" "$folder/c/train_000000.bin"
check "one text: its end is to validate on" tokenize --data "$folder/in/big.txt" --val 0.1 --out "$folder/v"
check "about a tenth of it" test "$(wc -c <"$folder/v/val_000000.bin")" \
    -gt "$(($(wc -c <"$folder/v/train_000000.bin") / 12))"
check "shards are full but for the last" test "$(wc -c <"$folder/t1/train_000000.bin")" = 601024

check "no data" refused "no file is named" --data "$folder/nothing"
check "an empty folder" refused "no text in it" --data "$folder/in/.hidden/../below/../empty"
check "a binary file that is named" refused "not a text" --data "$folder/in/binary"
check "a packed file that is named" sh -c 'gzip -c "$1/one.txt" >"$1/one.gz"' sh "$folder"
check "is called by its name" refused "compressed with gzip" --data "$folder/one.gz"
printf '{"text":"a"}\n{"text":"b\n' >"$folder/cut.jsonl"
check "JSON that is cut off" refused "cut.jsonl:2:" --data "$folder/cut.jsonl"
printf '{"text":"a"}\n{"txt":"b"}\n' >"$folder/field.jsonl"
check "a field that is missing" refused "field.jsonl:2:1: \"text\" is missing" --data "$folder/field.jsonl"
check "a document token that is not there" refused "has no special token of this name" --data "$folder/one.txt" \
    --document-token "<s>"
check "nothing left to validate on" refused "no document is left to validate on" --data "$folder/x.jsonl" --val 0.000001
check "shards that are there already" refuses "" tokenize --data "$folder/one.txt" --out "$folder/a"
check "are not touched" cmp "$folder/a/train_000000.bin" "$folder/b/train_000000.bin"
check "a wrong vocabulary" refuses Makefile:1 tokenize --tokenizer Makefile --data Makefile --out "$folder/w"

# Multiple choice: the numbers behind the header, as a line.
choices() { "$bin/make_choices" --data "$folder/q.jsonl" --out "$folder/q.bin" "$@" >"$folder/log" 2>&1; }
not_choices() { # MESSAGE LINE
    printf '%s\n' "$2" >"$folder/q.jsonl"
    rm -f "$folder/q.bin"
    refuses "$1" choices --tokenizer "$gpt2" && [ ! -e "$folder/q.bin" ] && [ ! -e "$folder/q.bin.part" ]
}
# The length and the tokens of a text.
part() { printf "$1" | tokens | awk '{ printf "%d %s", NF, $0 NF ? $0 : ""; print "" }' | tr -s ' \n' ' '; }
q='{"ctx":"a quick dog","endings":["runs","it'"'"'s \u00e9"],"label":1,"ind":7}'
printf '%s\n\n  \n{"ctx":"b","endings":["c"],"label":"0"}' "$q" >"$folder/q.jsonl"
check "questions become choices" choices --tokenizer "$gpt2"
check "reported in one line" grep -q "q.bin: 2 examples with 3 completions" "$folder/log"
one="1 2 $(part 'a quick dog')$(part ' runs')$(part ' it'"'"'s \303\251')" two="0 1 $(part b)$(part ' c')"
bytes() { echo $((2 * (3 + $(echo "$1" | wc -w)))); }
check "context, and a blank before each ending" same "$(shard "$folder/q.bin")" \
    "65535 $(bytes "$one") 0 $one""65535 $(bytes "$two") 1 $two"
check "the header" same "$(od -A n -t d4 -N 20 "$folder/q.bin" | tr -s ' \n' ' ')" " 20240522 1 2 $(bytes "$one") 0 "
check "bytes are tokens too" choices --tokenizer bytes
check "of the same text" same "$(shard "$folder/q.bin" | cut -d ' ' -f 6-10)" "11 97 32 113 117"
check "no label" not_choices "q.jsonl:1:1: \"label\" is missing" '{"ctx":"a","endings":["b"]}'
check "a label that is too large" not_choices "q.jsonl:1:37: \"label\" is 2" '{"ctx":"a","endings":["b"],"label": 2}'
check "a label that is no number" not_choices "\"label\" is \"x\"" '{"ctx":"a","endings":["b"],"label":"x"}'
check "an ending that is no text" not_choices "an ending has to be a string" '{"ctx":"a","endings":[1],"label":0}'
check "no context" not_choices "\"ctx\" is empty" '{"ctx":"","endings":["b"],"label":0}'
check "no JSON" not_choices "q.jsonl:1:7:" '{"ctx"'
check "an empty file" not_choices "no example in it" ''
check "a text that is too long" not_choices "no room for" \
    "{\"ctx\":\"$(head -c 60000 /dev/zero | tr '\0' 7)\",\"endings\":[\"b\"],\"label\":0}"
finish
