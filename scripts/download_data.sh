#!/bin/sh
# scripts/download_data.sh NAME [FOLDER [SHARDS]]   fetches public data to train on, or a model, and says what to type.
#
#   tinyshakespeare   1.1 MB   all of Shakespeare's plays in one text
#   tinystories       2.3 GB   two million short stories in simple words, as text
#   fineweb           0.4 GB   FineWeb-Edu in GPT-2 tokens; 0.2 GB is a shard of 100 million: one to validate on, and
#                              SHARDS (1, at most 1001) to train on
#   gpt2              0.55 GB  OpenAI's GPT-2 of 124 million parameters and its vocabulary, to generate and to train on
#
# FOLDER is data/NAME where it is not given. Run it again after an interruption: it continues where it was. A file has
# its final name only when all of it is there. HF_ENDPOINT and GITHUB_RAW name mirrors of the two servers.
set -eu
hugging_face=${HF_ENDPOINT:-https://huggingface.co}
github=${GITHUB_RAW:-https://raw.githubusercontent.com}

stop() { # STATUS MESSAGE
    echo "download_data.sh: $2" >&2
    exit "$1"
}

# The size that a token shard says it has: 256 int32 (magic number, version, tokens, ...), then uint16 tokens.
shard_size() {
    od -A n -t d4 -N 12 "$1" | awk '$1 == 20240520 && $2 == 1 { size = 1024 + 2 * $3 } END { printf "%.0f\n", size }'
}

# The size that a file of safetensors says it has: the length of its header in 8 bytes, the header, and the tensors, at
# the end of the last of which it ends.
safetensors_size() {
    header=$(od -A n -t d8 -N 8 "$1" | tr -d ' ')
    [ "${#header}" -lt 9 ] || header=0
    dd if="$1" bs=8 skip=1 2>/dev/null | head -c "${header:-0}" | grep -o '"data_offsets": *\[ *[0-9]*, *[0-9]*' |
        awk -F'[,[]' -v header="${header:-0}" '$3 + 0 > end { end = $3 + 0 } END { printf "%.0f\n", 8 + header + end }'
}

# FILE SIZE: whether all of it is there. SIZE "shard", "safetensors": what its header says; "any": it is not empty.
is_complete() {
    [ -f "$1" ] || return 1
    expected=$2
    case $2 in
    shard) expected=$(shard_size "$1") ;;
    safetensors) expected=$(safetensors_size "$1") ;;
    any) expected="1 or more"; [ -s "$1" ]; return ;;
    esac
    [ "$(wc -c <"$1")" -eq "$expected" ]
}

# URL FILE: appends to FILE what is missing of it.
transfer() {
    if command -v curl >/dev/null 2>&1; then
        curl --fail --location --retry 5 --continue-at - --output "$2" "$1"
    elif command -v wget >/dev/null 2>&1; then
        wget --continue --tries=5 --output-document="$2" "$1"
    else
        stop 1 "needs curl or wget: install one of them, then run this again"
    fi
}

# URL SIZE: fetches one file to the folder under the last part of its URL.
fetch() {
    file=$folder/${1##*/}
    if is_complete "$file" "$2"; then
        echo "$file is already there"
        return
    fi
    echo "$1 -> $file"
    if ! is_complete "$file.part" "$2"; then
        transfer "$1" "$file.part" ||
            stop 1 "$1 did not arrive, the reason is above. Run the same command again to go on where it stopped."
    fi
    if ! is_complete "$file.part" "$2"; then
        size=$(wc -c <"$file.part")
        rm "$file.part"
        stop 1 "$1: $size bytes, ${expected:-0} expected; it is removed: open the address in a browser, try again"
    fi
    mv "$file.part" "$file"
}

case ${1:-} in
tinyshakespeare | tinystories | fineweb | gpt2) ;;
-h | --help) sed -n '1d;s/^# \{0,1\}//p;/^set/q' "$0"; exit 0 ;;
*) stop 2 "usage: $0 tinyshakespeare|tinystories|fineweb|gpt2 [FOLDER [SHARDS]]" ;;
esac
folder=${2:-data/$1}
shards=${3:-1}
case $shards in
*[!0-9]* | '') stop 2 "SHARDS is a number from 1 to 1001, not \"$shards\"" ;;
esac
{ [ "$shards" -ge 1 ] && [ "$shards" -le 1001 ]; } 2>/dev/null ||
    stop 2 "SHARDS is a number from 1 to 1001, not $shards"
[ $# -le 2 ] || [ "$1" = fineweb ] || stop 2 "$1 has no shards: drop \"$3\""
mkdir -p "$folder" || stop 1 "cannot make the folder $folder"

case $1 in
tinyshakespeare)
    fetch "$github/karpathy/char-rnn/master/data/tinyshakespeare/input.txt" 1115394
    options="--data \"$folder/input.txt\""
    ;;
tinystories)
    base=$hugging_face/datasets/roneneldan/TinyStories/resolve/main
    fetch "$base/TinyStoriesV2-GPT4-valid.txt" 22502601
    fetch "$base/TinyStoriesV2-GPT4-train.txt" 2227753162
    options="--data \"$folder/TinyStoriesV2-GPT4-train.txt\" --val \"$folder/TinyStoriesV2-GPT4-valid.txt\""
    ;;
fineweb)
    base=$hugging_face/datasets/karpathy/fineweb-edu-100B-gpt2-token-shards/resolve/main
    fetch "$base/edu_fineweb_val_000000.bin" shard
    shard=1
    while [ "$shard" -le "$shards" ]; do
        fetch "$base/edu_fineweb_train_$(printf %06d "$shard").bin" shard
        shard=$((shard + 1))
    done
    options="--model gpt2-124M --data \"$folder/edu_fineweb_train_*.bin\" --val \"$folder/edu_fineweb_val_000000.bin\""
    ;;
gpt2)
    base=$hugging_face/openai-community/gpt2/resolve/main
    for name in config generation_config tokenizer tokenizer_config; do fetch "$base/$name.json" any; done
    fetch "$base/model.safetensors" safetensors
    options="--init \"$folder\" --generate \"Once upon a time\""
    ;;
esac
echo "Now type: ./train_gpt $options"
