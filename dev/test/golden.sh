#!/bin/bash
# golden.sh: does a change keep the bits? Some forty short trainings, one for each way through the trainer: their
# losses, gradient norms and weights must be those of a reference binary, bit for bit.
#
#   dev/test/golden.sh record FILE TRAIN_GPT [WORD]    runs the cases whose names contain WORD; hashes to FILE
#   dev/test/golden.sh compare FILE TRAIN_GPT [WORD]   runs them again; shows what differs, exit status 1
#
# The bits depend on the processor and the compiler, so no hashes are committed: record them with a binary of the
# reference commit on the machine that compares. TRAIN_GPT stands beside its scripts/. A line has a case, a hash of
# step, loss, val_loss, grad_norm, lr and tokens of log.jsonl, one of the tensors of the run's model.safetensors, of
# exports and of generated text, and the last loss.
set -eu
[ $# -ge 3 ] || { sed -n '2,6s/^# \{0,1\}//p' "$0"; exit 2; }
command=$1 file=$(realpath "$2") train=$(realpath "$3") word=${4:-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
export OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_btl_vader_backing_directory=$work

common="--arch gpt2 --layers 4 --hidden 32 --heads 4 --seq 32 --micro-batch 1 --global-batch 8 --data text.txt --steps 6
    --lr 2e-3 --min-lr 1e-4 --warmup 2 --decay cosine --seed 7 --eval-every 2 --eval-sequences 8 --sample-every 0
    --save-every 0 --keep-last 0 --check-replicas-every 0 --out out"

# run RANKS OPTIONS: one training, stdout to text. Of an option that is given twice the last value counts.
run() {
    local launch=() defaults=$common
    [[ $2 != *--generate* ]] || defaults=""
    [ "$1" = 1 ] || launch=("${train%/*}/scripts/mpirun.sh" -np "$1" env OMP_NUM_THREADS=1)
    # shellcheck disable=SC2086  # words
    timeout -k 5 120 "${launch[@]}" "$train" $defaults $2 >text 2>errors </dev/null && return
    head -c 600 errors >&2
    return 1
}

hash() { sha256sum | cut -c 1-20; }
# result OPTIONS: "LOG WEIGHTS LOSS" of the run that has just ended
result() {
    local log
    log=$(cat {out,again}/log.jsonl 2>/dev/null | grep -o '"\(step\|loss\|val_loss\|grad_norm\|lr\|tokens\)":[^,}]*')
    echo "$(hash <<<"$log") $({
        find {out,again}/step_* weights* 2>/dev/null | grep 'model.safetensors$' | sort |
            while read -r model; do tail -c +$(($(od -An -tu8 -N8 "$model") + 9)) "$model"; done
        [[ $* != *--generate* ]] || cat text
    } | hash) $(grep '^"loss"' <<<"$log" | tail -n 1 | cut -d : -f 2)"
}

seq 12000 >text.txt
# NAME | RANKS | OPTIONS [then OPTIONS]: what follows "then" resumes the run, perhaps on another mesh.
while read -r name _ ranks _ text; do
    [[ $name == *"$word"* ]] || continue
    rm -rf out again weights*
    again=${text##* then }
    [[ $text == *" --init "* ]] || again="$again --resume"
    [[ $text == *" then "* ]] || again=""
    if run "$ranks" "${text%% then *}" && { [ -z "$again" ] || run "$ranks" "$again"; }; then
        echo "$name $(result "$text")"
    else
        echo "$name failed"
    fi | tee -a recorded
done <<'CASES'
gpt2            | 1 |
llama           | 1 | --arch llama --kv-heads 2 --decay linear
recompute       | 1 | --recompute full --global-batch 6
sgd             | 1 | --optimizer sgd --decay wsd --weight-decay 0
tp              | 2 | --tp 2
tp-llama        | 2 | --tp 2 --arch llama --kv-heads 2 --recompute selective
sequence        | 2 | --tp 2 --sequence-parallel
sequence-llama  | 2 | --tp 2 --sequence-parallel --arch llama --kv-heads 2
pp-gpipe        | 2 | --pp 2 --schedule gpipe
pp-1f1b         | 2 | --pp 2 --schedule 1f1b
pp-interleaved  | 2 | --pp 2 --schedule interleaved --vpp 2
pp-zb-h1        | 2 | --pp 2 --schedule zb-h1
pp-zb-v         | 2 | --pp 2 --schedule zb-v
pp-uneven       | 2 | --pp 2 --schedule 1f1b --layers 5 --arch llama
dp-zero0        | 2 | --dp 2 --zero 0
dp-zero1        | 2 | --dp 2 --zero 1
dp-zero2        | 2 | --dp 2 --zero 2
dp-multitree    | 4 | --dp 4 --allreduce multitree --zero 1
2x2x2           | 8 | --tp 2 --pp 2 --dp 2 --zero 2 --schedule interleaved --vpp 2
2x2x2-llama     | 8 | --tp 2 --pp 2 --dp 2 --zero 1 --schedule zb-v --sequence-parallel --arch llama
2x2-whole       | 4 | --tp 2 --pp 2 --no-scatter-gather --schedule zb-h1
caat-1          | 1 | --caat-fraction 0.5 --caat-ranks 2
caat-2          | 2 | --caat-fraction 0.5 --tp 2
caat-llama      | 4 | --caat-fraction 0.25 --caat-ranks 4 --tp 2 --pp 2 --arch llama
caat-dp         | 4 | --caat-fraction 0.5 --tp 2 --dp 2 --zero 1 --recompute full --caat-grad-dtype same
sites           | 4 | --dp 4 --sites 2
dc-s3gd         | 2 | --dp 2 --dp-mode dc-s3gd
dc-s3gd-sites   | 4 | --dp 4 --sites 2 --dp-mode dc-s3gd
dc-s3gd-lambda  | 2 | --dp 2 --dp-mode dc-s3gd --dc-lambda 0 --steps 4 then --dp 2 --steps 8
dc-s3gd-pp      | 4 | --dp 2 --pp 2 --schedule 1f1b --dp-mode dc-s3gd --arch llama
diloco          | 2 | --dp 2 --dp-mode diloco --local-steps 3
diloco-tp       | 4 | --dp 2 --tp 2 --dp-mode diloco --local-steps 3
diloco-sites    | 4 | --dp 4 --sites 2 --dp-mode diloco --local-steps 3
diloco-resume   | 2 | --dp 2 --dp-mode diloco --local-steps 3 --steps 4 then --dp 2 --steps 8
resume          | 4 | --tp 2 --pp 2 --steps 3 then --dp 4 --zero 2
resume-caat     | 2 | --caat-fraction 0.5 --tp 2 --steps 3 then --caat-fraction 0.5 --caat-ranks 2 --tp 1 --dp 2
init            | 2 | --steps 2 --dp 2 then --tp 2 --out again --init out/best --steps 4
export          | 2 | --tp 2 --export weights
generate        | 2 | --tp 2 then --tp 2 --init out/best --generate abc --max-new-tokens 40 --top-k 20 --top-p 0.9
CASES
[ "$command" != record ] || cp recorded "$file"
if grep " failed$" recorded; then exit 1; fi
grep "^[^ ]*$word" "$file" | diff - recorded && echo "$(wc -l <recorded) cases, the same bits"
