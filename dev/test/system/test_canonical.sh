#!/bin/bash
# --canonical: every mesh ends with one rank's bytes, for both architectures: losses, gradient norms, weights, moments
# after steps with clipping. d is up to 8, p up to 4, with all schedules, ZeRO 0 to 2, recomputation, halves and,
# each with bits of its own, tensor and sequence parallelism. A checkpoint of one mesh is resumed on another. LONG=1:
# three times as many meshes, 20 steps, and bf16 too. ./train_gpt and $BUILD/bf16/train_gpt are built already.
# shellcheck disable=SC2034,SC2086  # architectures are lists of words, and go by name, ${!2}
. dev/test/system/mesh.sh
steps=6
! full || steps=20
common="--data text.txt --layers 8 --hidden 32 --heads 4 --seq 16 --global-batch 16 --clip 0.5 --sample-every 0"
common+=" --eval-every 0 --steps $steps"
gpt2="$common --arch gpt2" llama="$common --arch llama --kv-heads 2 --ffn 48"

# ranks OUT ARCH OPTIONS...: as many ranks as --tp, --pp and --dp say; they send what the formulas say
micro="--micro-batch 1"
ranks() {
    local n=1 i
    for ((i = 3; i < $#; i++)); do case ${!i} in --tp | --pp | --dp) n=$((n * ${*:i+1:1})) ;; esac; done
    launch $n "$train" ${!2} $micro --out "$1" "${@:3}"
    [ $status = 0 ] && awk '/^traffic/, 0 { if ($(NF - 1) ~ /^[0-9.]+$/ && $(NF - 1) != $NF) exit 1 }' out ||
        { tail -n 8 out err; return 1; }
}
# bytes OUT: of the last checkpoint, and the digits of losses and norms
bytes() {
    cat "$1"/step_*"$steps"/{model,optimizer}.safetensors | sha256sum
    grep -o '"step":[0-9]*,"loss":[^,]*\|"grad_norm":[^,]*' "$1/log.jsonl"
}
same() { cmp <(bytes "$1") <(bytes "$2") && [ "$(bytes "$1" | wc -l)" -gt "$steps" ]; }
# mesh ARCH OPTIONS: has the bytes of the first mesh with this architecture, number of leaves and --tp
declare -A first=()
mesh() {
    local kind out
    kind="$1 $(grep -o 'canonical [0-9]*\|tp [0-9]\|sequence\|tp-comm\|micro-batch 2' <<<"$2" | tr '\n' ' ')"
    out="run$((${#first[@]}))"
    [ -z "${first[$kind]:-}" ] || out=mesh
    rm -rf mesh
    verify "$1 $2" ranks $out $1 $2
    if [ $out = mesh ]; then verify "... has the bytes of ${first[$kind]}" same mesh "${first[$kind]}"
    else first[$kind]=$out; fi
}
meshes() {
    while read -r arch options; do
        full || [[ $options != *long ]] || continue
        mesh "$arch" "${options% long}"
    done
}
meshes <<'CASES'
gpt2 --canonical 8
gpt2 --canonical 8 --dp 2 long
gpt2 --canonical 8 --dp 4 --zero 1
gpt2 --canonical 8 --dp 8
gpt2 --canonical 8 --dp 8 --zero 1 long
gpt2 --canonical 8 --pp 2 --schedule interleaved --recompute full long
gpt2 --canonical 8 --pp 4 --recompute selective long
gpt2 --canonical 8 --pp 2 --dp 2 --schedule zb-h1
gpt2 --canonical 8 --pp 4 --dp 2 --zero 1 --schedule zb-v
gpt2 --canonical 16
gpt2 --canonical 16 --dp 4 --zero 2
gpt2 --canonical 16 --pp 2 --dp 4 --zero 2 long
gpt2 --canonical 8 --tp 2 long
gpt2 --canonical 8 --tp 2 --pp 2 --dp 2 --zero 1 long
gpt2 --canonical 8 --tp 2 --micro-batch 2 --tp-comm-overlap long
gpt2 --canonical 8 --tp 2 --micro-batch 2 --tp-comm-overlap --dp 2 --pp 2 --schedule zb-h1 long
gpt2 --canonical 4 --dp 2 long
gpt2 --canonical 4 --dp 4 --zero 1 long
llama --canonical 8
llama --canonical 8 --dp 2 --zero 1 long
llama --canonical 8 --dp 4 --pp 2 --schedule interleaved
llama --canonical 8 --dp 8 long
llama --canonical 8 --pp 4 --schedule gpipe long
llama --canonical 8 --pp 4 --dp 2 --schedule zb-h1 long
llama --canonical 16
llama --canonical 16 --dp 8 --zero 2 long
llama --canonical 16 --dp 2 --pp 2 --zero 2
llama --canonical 8 --tp 2 --sequence-parallel
llama --canonical 8 --tp 2 --sequence-parallel --dp 4 --zero 1
llama --canonical 8 --tp 4 long
llama --canonical 8 --tp 4 --dp 2 --zero 1 long
CASES

verify "the plan says it" grep -q '^canonical gradients of 8 leaves' out

# A step on one mesh, the others on another.
half=$((steps / 2))
verify "half of the steps on 4 ranks" ranks again gpt2 --canonical 8 --dp 4 --zero 1 --save-every $half
rm -r again/step_*"$steps"
verify "the others on 2 stages" ranks again gpt2 --canonical 8 --pp 2 --resume
verify "... end with the same bytes" same again run0

# By default a leaf is a micro-batch, on every mesh, and a run that is resumed on another keeps to it.
micro=
verify "a leaf a micro-batch" ranks usual gpt2 --canonical 4 --save-every $half
verify "the same on 4 stages" ranks usual4 gpt2 --canonical 4 --pp 4
verify "... ends with the same bytes" same usual usual4
rm -r usual/step_*"$steps"
launch 2 "$train" --out usual --resume --dp 2
verify "so does the first, resumed on two ranks" same usual usual4
micro="--micro-batch 1"

# Without it d changes bits: the comparison sees one.
verify "one rank without --canonical" ranks plain1 gpt2
verify "four" ranks plain4 gpt2 --dp 4
differ() { ! same "$@"; }
verify "... end with other bytes" differ plain1 plain4
NORM=8 verify_py "--canonical trains the same, but for rounding:" same run0 plain1 1e-5

# refused, by name
refuses() { # WORDS OPTIONS...
    "$train" $gpt2 --micro-batch 1 --dry-run "${@:2}" >out 2>err
    status=$? seconds=0
    ended 2 "$1" "${*:2}"
}
refuses "powers of two" --canonical 6
refuses "powers of two" --canonical 2 --dp 4
refuses "micro-batches" --canonical 32
refuses "--zero 2 needs as many" --canonical 8 --dp 2 --zero 2
refuses "--caat-fraction" --canonical 8 --tp 2 --caat-fraction 0.5
refuses "--sites" --canonical 8 --dp 2 --dp-mode diloco --local-steps 2
refuses "--allreduce ring" --canonical 8 --dp 2 --allreduce ring
if full; then
    train=$build/bf16/train_gpt first=()
    rm -rf run*
    meshes <<'CASES'
gpt2 --canonical 8
gpt2 --canonical 8 --dp 4 --zero 1
gpt2 --canonical 8 --pp 2 --dp 4 --schedule zb-h1
llama --canonical 16
llama --canonical 16 --dp 8 --zero 2
CASES
fi
finish
