#!/bin/bash
# make bench: everything that the tables in docs/benchmarks.md say, on this machine, each contestant in the same run.
#   dev/bench/run.sh [matmul] [kernels] [attention] [step] [mesh] [schedules] [collectives]
#   default: all
# Peers: OpenBLAS and oneDNN if their libraries are installed (apt-get install libopenblas0 libdnnl2), PyTorch if
# PYTORCH=venv/bin/python3 can import torch (/usr/bin/python3 after apt-get install python3-torch), llm.c if LLMC=folder
# names a checkout of it.
set -u
BUILD=${BUILD:-build} PYTORCH=${PYTORCH:-/usr/bin/python3}
what="${*:-matmul kernels attention step mesh schedules collectives}"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
processor=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)
echo "machine: $processor, $(nproc) cores; $(date +%F); $(git rev-parse --short HEAD 2>/dev/null)"

# field NAME FILE: the median of one number over the lines of a log, without the first (cold) one
field() {
    tail -n +2 "$2" | sed "s/.*\"$1\":\([0-9.]*\).*/\1/" | sort -g |
        awk '{ x[NR] = $1 } END { print x[int((NR + 1) / 2)] }'
}

# middle FILE: the same of any numbers, with all their digits
middle() { sort -g "$1" | awk '{ x[NR] = $1 } END { print x[int((NR + 1) / 2)] }'; }

# number NAME JSON: the number called NAME in a line of JSON
number() { expr "$2" : ".*\"$1\": *\([0-9.]*\)"; }

# median FILE: of the numbers in a file, one a line
median() { sort -g "$1" | awk '{ x[NR] = $1 } END { printf "%.1f", x[int((NR + 1) / 2)] }'; }

# Whether PyTorch is here.
has_pytorch() { "$PYTORCH" -c 'import torch' 2>/dev/null; }

ours() { # PRECISION TRAINER B T: six steps; tokens/s, 6N MFU in %, MB and seconds to the first step
    local trainer=$2 to=$work/$1
    shift 2
    rm -rf "$work/run"
    "$trainer" --model gpt2-124M --seq "$2" --micro-batch "$1" --steps 6 --eval-every 0 --sample-every 0 --warmup 0 \
        --lr 1e-4 --min-lr 1e-4 --out "$work/run" >"$work/out" 2>&1 || { cat "$work/out"; exit 1; }
    log=$work/run/log.jsonl tps=$(field tokens_per_s "$work/run/log.jsonl")
    # the log's mfu counts attention too (6 N + 6 L C T); here 6 N a token
    peak=$(sed -n 's/.*measured peak \([0-9]*\) GFLOP.*/\1/p' "$work/out")
    echo "$tps" >>"$to.tps"
    awk -v tps="$tps" -v peak="$peak" 'BEGIN { print 100 * tps * 6 * 124439808 / (peak * 1e9) }' >>"$to.mfu"
    field peak_mem_bytes "$log" | awk '{ print $1 / 1e6 }' >>"$to.mb"
    first=$(sed -n '1s/.*"step_ms":\([0-9.]*\).*/\1/p' "$log")
    awk -v ms="$first" '/^startup/ { print $2 + ms / 1000 }' "$work/out" >>"$to.first"
    rm -rf "$work/run"
}

case " $what " in *" step "*)
    ./train_gpt --version | grep -q ', fp32' || {
        echo "run.sh: ./train_gpt is not of float32: make PRECISION=fp32 train_gpt $BUILD/bf16/train_gpt" >&2
        exit 1
    } ;;
esac

step() { # B T: one training step of GPT-2 124M, this trainer and its peers in turn, three times; medians
    rm -f "$work"/{fp32,bf16,torch-*}.* "$work/llmc"
    for round in 1 2 3; do
        ours fp32 ./train_gpt "$1" "$2"
        ours bf16 "$BUILD/bf16/train_gpt" "$1" "$2"
        for flags in "" --tuned --bf16 "--bf16 --tuned"; do
            has_pytorch || continue
            # shellcheck disable=SC2086  # a list of words
            line=$("$PYTORCH" dev/bench/peer_pytorch.py --B "$1" --T "$2" --threads "$(nproc)" --steps 3 $flags)
            number tokens_per_s "$line" >>"$work/torch-$flags.tps"
            number peak_mb "$line" >>"$work/torch-$flags.mb"
        done
        if [ -n "${LLMC:-}" ] && [ $round = 1 ]; then
            number tokens_per_s "$(STEPS=2 dev/bench/peer_llmc.sh "$LLMC" "$1" "$2")" >>"$work/llmc"
        fi
    done
    row() { # CONTESTANT FILE PRECISION EXTRA: its tokens/s, and how many times as fast we are in that precision
        awk -v name="$1" -v B="$B" -v T="$T" -v tps="$(median "$2")" -v we="$(median "$work/$3.tps")" -v extra="$4" \
            'BEGIN { printf "%-22s %3d %5d %10.1f %8.2fx   %s\n", name, B, T, tps, we / tps, extra }'
    }
    B=$1 T=$2
    for p in fp32 bf16; do
        started="first step done $(median "$work/$p.first") s after the start"
        row "threefold $p" "$work/$p.tps" $p "$(median "$work/$p.mfu") % of peak, $(median "$work/$p.mb") MB, $started"
        for tuned in "" --tuned; do
            flags=$tuned
            [ $p = fp32 ] || flags=--bf16${tuned:+ --tuned}
            [ ! -e "$work/torch-$flags.tps" ] ||
                row "PyTorch $p${tuned:+, tuned}" "$work/torch-$flags.tps" $p \
                    "$(tr '\n' ' ' <"$work/torch-$flags.tps")tokens/s, $(median "$work/torch-$flags.mb") MB"
        done
    done
    [ ! -e "$work/llmc" ] || row "llm.c train_gpt2" "$work/llmc" fp32 ""
}

mesh() { # two ranks beside one rank with as many threads, in turn, three times; medians of the rounds' medians
    text=$(ls data/*/input.txt 2>/dev/null | head -n 1) # a real text if there is one, or what the trainer finds
    model="--layers 6 --hidden 384 --heads 6 --seq 256 --global-batch 32 --micro-batch 2 --steps 5 --warmup 0"
    rm -f "$work"/mesh.*
    for round in 1 2 3; do
        i=0
        for mesh in "" "--tp 2" "--tp 2 --sequence-parallel" "--pp 2" "--dp 2" "--dp 2 --zero 1" "--dp 2 --zero 2"; do
            rm -rf "$work/run"
            if [ -z "$mesh" ]; then start=./train_gpt; else start="scripts/mpirun.sh -np 2 ./train_gpt $mesh"; fi
            # shellcheck disable=SC2086  # lists of words
            $start $model ${text:+--data "$text"} --eval-every 0 --sample-every 0 --out "$work/run" >"$work/out" 2>&1 ||
                { cat "$work/out"; exit 1; }
            field tokens_per_s "$work/run/log.jsonl" >>"$work/mesh.$i"
            field bubble "$work/run/log.jsonl" >>"$work/mesh.bubble.$i"
            rm -rf "$work/run/step_"*
            i=$((i + 1))
        done
    done
    echo "$model"
    printf '%-30s %10s %10s %10s   %s\n' "" tokens/s "of 1 rank" "idle" "rounds"
    i=0
    for mesh in "1 rank, $(nproc) threads" "tensor 2" "tensor 2, sequence parallel" "pipeline 2" "data 2" \
        "data 2, ZeRO-1" "data 2, ZeRO-2"; do
        awk -v name="$mesh" -v tps="$(median "$work/mesh.$i")" -v one="$(median "$work/mesh.0")" \
            -v rounds="$(tr '\n' ' ' <"$work/mesh.$i")" -v idle="$(sort -g "$work/mesh.bubble.$i" | sed -n 2p)" \
            'BEGIN { printf "%-30s %10.0f %9.0f%% %9.1f%%   %s\n", name, tps, 100 * tps / one, 100 * idle, rounds }'
        i=$((i + 1))
    done
}

# gain FILE SCHEDULE COLUMN: how much longer 1f1b takes than SCHEDULE, median of the rounds, by a column of lines
# "round schedule measured predicted"
gain() { awk -v s="$2" -v c="$3" '$2 == "1f1b" { one[$1] = $c } $2 == s { x[$1] = $c }
    END { for (r in x) print one[r] / x[r] - 1 }' "$1" >"$work/gain" && middle "$work/gain"; }

schedules() { # two stages, four micro-batches: every schedule in turn, seven times; what the tables predict beside it
    text=$(ls data/*/input.txt 2>/dev/null | head -n 1)
    model="--layers 8 --hidden 512 --heads 8 --seq 256 --global-batch 4 --micro-batch 1 --steps 12 --warmup 0"
    names="1f1b gpipe interleaved zb-h1 zb-v"
    rm -f "$work/schedules"
    for round in 1 2 3 4 5 6 7; do
        for schedule in $names; do
            # shellcheck disable=SC2086  # a list of words
            scripts/mpirun.sh -np 2 ./train_gpt --pp 2 --schedule $schedule $model ${text:+--data "$text"} \
                --eval-every 0 --sample-every 0 --trace "$work/trace.json" >"$work/out" 2>&1 &&
                dev/plot/measured.py "$work/trace.json" >"$work/said" || { cat "$work/out"; exit 1; }
            awk -v line="$round $schedule" '/^step|^bubble/ { line = line " " $3 " " $5 } END { print line }' \
                "$work/said" >>"$work/schedules"
        done
    done
    echo "$model --pp 2; medians of seven rounds"
    echo "predicted: by the tables, from the times of the run's own passes, step by step. gain: over 1f1b in the same"
    echo "round; predicted likewise; idle: what the bubbles alone make of it, (1 + 1f1b's) / (1 + its own)"
    printf '%-12s %8s %9s %7s %9s %7s %9s %7s\n' "" "step, ms" predicted bubble predicted gain predicted idle
    for schedule in $names; do
        for column in 3 4 5 6; do
            awk -v s=$schedule -v c=$column '$2 == s { print $c }' "$work/schedules" >"$work/column.$column"
        done
        [ $schedule != 1f1b ] || one=$(middle "$work/column.5")
        awk -v s=$schedule -v m="$(middle "$work/column.3")" -v p="$(middle "$work/column.4")" -v one="$one" \
            -v a="$(middle "$work/column.5")" -v b="$(middle "$work/column.6")" \
            -v g="$(gain "$work/schedules" $schedule 3)" -v h="$(gain "$work/schedules" $schedule 4)" 'BEGIN {
                printf "%-12s %8.0f %9.0f %7.3f %9.3f %6.1f%% %8.1f%% %6.1f%%\n", s, m, p, a, b, 100 * g, 100 * h,
                    100 * ((1 + one) / (1 + a) - 1)
            }'
    done
}

for part in $what; do
    echo
    echo "== $part"
    case $part in
    step)
        printf '%-22s %3s %5s %10s %9s\n' "GPT-2 124M" B T tokens/s "we are"
        for T in ${LENGTHS:-64 256 1024}; do step 4 "$T"; done
        ;;
    mesh) mesh ;;
    schedules) schedules ;;
    collectives) # plans of up to 4,096 ranks; and run by 4 ranks that share memory, beside MPI's own
        "$BUILD/bench_plans"
        [ -z "${MPIRUN:-}" ] || scripts/mpirun.sh -np 4 "$BUILD/bench_collective"
        ;;
    matmul | kernels | attention)
        "$BUILD/bench_$part"
        "$BUILD/bf16/bench_$part"
        for flags in "" --bf16; do
            [ $part = matmul ] && has_pytorch || continue
            echo "PyTorch $flags, $(nproc) threads, GFLOP/s"
            "$PYTORCH" dev/bench/peer_pytorch.py --products --threads "$(nproc)" $flags
        done
        ;;
    esac
done
