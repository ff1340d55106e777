#!/bin/bash
# make bench: everything that the README's tables say, on this machine, each contestant in the same run.
#   dev/bench/run.sh [matmul] [kernels] [attention] [step]      default: all
# Peers: OpenBLAS and oneDNN if their libraries are installed (apt-get install libopenblas0 libdnnl2), PyTorch if
# /usr/bin/python3 can import torch (apt-get install python3-torch), llm.c if LLMC=folder names a checkout of it.
set -u
BUILD=${BUILD:-build}
what="${*:-matmul kernels attention step}"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
echo "machine: $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $(nproc) cores; $(date +%F); $(git rev-parse --short HEAD 2>/dev/null)"

# field NAME FILE: the median of one number over the lines of a log, without the first (cold) one
field() {
    tail -n +2 "$2" | sed "s/.*\"$1\":\([0-9.]*\).*/\1/" | sort -g | awk '{ x[NR] = $1 } END { print x[int((NR + 1) / 2)] }'
}

# row CONTESTANT B T TOKENS_PER_S MFU MB
row() { printf '%-26s %3s %5s %14.0f %8s %10s\n' "$1" "$2" "$3" "$4" "$5" "$6"; }

step() { # B T: one training step of GPT-2 124M, this trainer and its peers in turn
    for round in 1 2; do
        ./train_gpt --model gpt2-124M --seq "$2" --micro-batch "$1" --steps 6 --eval-every 0 --sample-every 0 --warmup 0 --lr 1e-4 --min-lr 1e-4 \
            --out "$work/step_$2_$round" >"$work/out" 2>&1 || { cat "$work/out"; return 1; }
        rm -rf "$work/step_$2_$round"/step_*
        log=$work/step_$2_$round/log.jsonl
        # mfu in the log counts attention too (6 N + 6 L C T); here 6 N a token
        mfu=$(awk -v tps="$(field tokens_per_s "$log")" -v peak="$(sed -n 's/.*measured peak \([0-9]*\) GFLOP.*/\1/p' "$work/out")" 'BEGIN { printf "%.1f %%", 100 * tps * 6 * 124439808 / (peak * 1e9) }')
        row "threefold" "$1" "$2" "$(field tokens_per_s "$log")" "$mfu" "$(field peak_bytes "$log" | awk '{ printf "%.0f MB", $1 / 1e6 }')"
        if /usr/bin/python3 -c 'import torch' 2>/dev/null; then
            line=$(/usr/bin/python3 dev/bench/peer_pytorch.py --B "$1" --T "$2" --threads "$(nproc)" --steps 4)
            row "PyTorch $(expr "$line" : '.*"version": *"\([^"]*\)')" "$1" "$2" "$(expr "$line" : '.*"tokens_per_s": *\([0-9.]*\)')" "" "$(expr "$line" : '.*"peak_mb": *\([0-9.]*\)') MB"
        fi
        if [ -n "${LLMC:-}" ] && [ $round = 1 ]; then
            line=$(STEPS=3 dev/bench/peer_llmc.sh "$LLMC" "$1" "$2")
            row "llm.c train_gpt2" "$1" "$2" "$(expr "$line" : '.*"tokens_per_s": *\([0-9.]*\)')" "" ""
        fi
    done
    awk '/^ready/ { r = $2 } / step +1\// || /^step +1\// { sub(/ ms.*/, ""); print "from ./train_gpt to the end of the first step: " r + $NF / 1000 " s" }' "$work/out"
}

for part in $what; do
    echo
    echo "== $part"
    case $part in
    step)
        printf '%-26s %3s %5s %14s %8s %10s\n' "GPT-2 124M, float32" B T tokens/s "6N MFU" memory
        step 4 64
        step 4 256
        ;;
    *) "$BUILD/bench_$part" ;;
    esac
done
