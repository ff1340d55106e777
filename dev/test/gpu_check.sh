#!/bin/bash
# dev/test/gpu_check.sh [--only PART,PART...] [--models "NAME NAME..."] [OUT]
#
# Everything that only a machine with a GPU can tell, in calls of less than ten minutes each. The parts, in the order in
# which they run:
#
#   kernels    every kernel against the C reference: random inputs, poisoned outputs, several shapes, bf16, fp16, fp32
#   model      the whole model against PyTorch's numbers and against itself; two runs of 200 steps of a small GPT on
#              real text that have to be the same bit for bit, and the curve of the loss in bf16 and fp16 beside
#              float32's
#   bench      kernels beside their floors and goals (dev/bench/bench_gpu.cu)
#   train      training steps of six models: tokens/s, MFU, memory, beside floor and goal (dev/bench/roofline.h), and
#              PyTorch, compiled and with flash attention, on the same GPU (left out where there is no PyTorch that sees
#              it)
#   meshes     messages between several ranks on this one GPU, then meshes against one rank: through the host (MPI), and
#              through NCCL, which refuses ranks that share a GPU unless they seem to be on hosts of their own
#              (NCCL_HOSTID)
#   sanitizer  compute-sanitizer on the kernels
#
# Where there are attention kernels for this GPU (ATTENTION=wgmma), what has attention in it runs with these, too. Each
# part builds what it needs. All of them together need about three calls: --only kernels,model,meshes, --only
# bench,sanitizer and
# --only train; and those of all models two (--models). What there is no time for is left out, and said.
#
# Prints a line for each, last the whole in a table, which is also written to OUT (build/gpu_check.txt) together with
# the measurements; lines of JSON in build/gpu_check/. Exit status 0 only if nothing failed. What cannot be run here (no
# MPI, no NCCL, no compute-sanitizer) is said and left out. SECONDS_LIMIT=570: for everything. TEXT: what the small GPT
# reads, instead of this project's own sources.
set -u
cd "$(dirname "$0")/../.." || exit 1
all_parts="kernels model bench train meshes sanitizer"
only="$all_parts" models="" out=""
usage() {
    echo "gpu_check.sh: $*; gpu_check.sh [--only PART,PART...] [--models \"NAME ...\"] [OUT], parts: $all_parts" >&2
    exit 2
}
while [ $# -gt 0 ]; do
    case $1 in
    --only | --models) [ $# -gt 1 ] || usage "$1 needs a value" ;;&
    --only) only=$(echo "$2" | tr ',' ' ') && shift ;;
    --models) models=$2 && shift ;;
    -*) usage "$1 is not known" ;;
    *) [ -z "$out" ] || usage "$1: there is $out already"; out=$1 ;;
    esac
    shift
done
for part in $only; do
    case " $all_parts " in *" $part "*) ;; *) usage "--only $part is not known" ;; esac
done
BUILD=${BUILD:-build}
out=${out:-$BUILD/gpu_check.txt}
log=$BUILD/gpu_check
bin=$BUILD/cuda
limit=${SECONDS_LIMIT:-570} # for everything
started=$SECONDS
failures=0
mkdir -p "$log"
table=$log/table
: >"$table"
: >"$log/steps"

left() { echo $((limit - SECONDS + started)); }
wants() { case " $only " in *" $1 "*) ;; *) return 1 ;; esac }

# row RESULT SECONDS WHAT MORE
row() {
    [ "$1" != FAIL ] || failures=$((failures + 1))
    printf '%-8s %4d s  %-46s %s\n' "$1" "$2" "$3" "$4" | tee -a "$table"
}

# The file for what a part says.
file_of() { echo "$log/$(echo "$1" | tr ' /,' '___').log"; }

# part SECONDS WHAT COMMAND...: runs it for so long at most; its last line says what came out
part() {
    local most=$1 what=$2 begin=$SECONDS file foreground result=ok
    shift 2
    file=$(file_of "$what")
    if [ "$(left)" -lt 5 ] || [ "$(left)" -lt $((most / 8)) ]; then
        row "left out" 0 "$what" "$(left) s are left, and it may take $most: another call, with --only"
        return 1
    fi
    [ "$(left)" -gt "$most" ] || most=$(left)
    # mpirun takes a second signal, to its group, as "leave at once", without its ranks
    case $1 in scripts/mpirun.sh) foreground=--foreground ;; *) foreground=--verbose ;; esac
    timeout $foreground -k 5 "$most" bash -c '"$@"' part "$@" >"$file" 2>&1 </dev/null || result=FAIL
    [ $result = ok ] || grep -a '^FAIL\|rror' "$file" | head -n 5
    row $result $((SECONDS - begin)) "$what" "$(tail -n 1 "$file" | cut -c 1-60)"
    [ $result = ok ]
}

# build WHAT PROGRAM...: for this GPU
build() {
    local what=$1 targets="" program
    shift
    for program in "$@"; do targets="$targets $bin/$program"; done
    # shellcheck disable=SC2086  # a list of words
    part 240 "build: $what" make -k -j "$(getconf _NPROCESSORS_ONLN)" DEVICE=cuda BUILD="$BUILD" GPU_ARCH="$arch" \
        $targets
}

# nccl_ranks N PROGRAM...: ranks without MPI, as torchrun would start them, which NCCL takes for ranks on N hosts
nccl_ranks() {
    local n=$1 pids=() status=0
    shift
    for ((r = 0; r < n; r++)); do
        RANK=$r WORLD_SIZE=$n LOCAL_RANK=$r MASTER_ADDR=127.0.0.1 MASTER_PORT=29517 NCCL_HOSTID=rank$r \
            NCCL_SOCKET_IFNAME=lo NCCL_NET=Socket NCCL_IB_DISABLE=1 NCCL_NVLS_ENABLE=0 NCCL_MAX_CTAS=1 \
            "$@" >"$log/rank$r.log" 2>&1 </dev/null &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do wait "$pid" || status=1; done
    cat "$log"/rank[1-9]*.log "$log/rank0.log"
    return $status
}

command -v nvidia-smi >/dev/null || { echo "gpu_check.sh: there is no nvidia-smi here: no GPU" >&2; exit 1; }
name=$(nvidia-smi --query-gpu=name,driver_version,clocks.max.sm,clocks.sm,temperature.gpu --format=csv,noheader |
    head -n 1) || exit 1
capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1 | tr -d '. ')
# Hopper's own instructions (wgmma) are only made for the architecture "90a", and run on nothing else.
arch=native families="mma"
if [ "$capability" = 90 ]; then
    arch=90a
    ! grep -q '"wgmma"' kernels/attention*.cuh || families="mma wgmma"
fi
echo "$(date -u +%Y-%m-%d), $name, sm_$arch, attention: $families, commit $(git rev-parse --short HEAD 2>/dev/null ||
    echo unknown)" |
    tee "$log/head"
export log BUILD
export -f nccl_ranks

tests=""
for file in dev/test/cuda/cuda_*.cu; do
    test=$(basename "$file" .cu)
    case $test in cuda_*bugs | cuda_comm) ;; *) tests="$tests $test" ;; esac # of the emulator; of several ranks
done

# What the card says from here to card_ends: memory in use, clock, power.
card_begins() {
    nvidia-smi --query-gpu=memory.used,clocks.sm,power.draw --format=csv,noheader,nounits \
        -lms 200 >"$log/card" 2>/dev/null &
    card_watcher=$!
}
card_ends() {
    [ -n "$card_watcher" ] || return 0
    kill "$card_watcher" 2>/dev/null
    wait "$card_watcher" 2>/dev/null
    card_watcher=""
}
card_watcher=""
trap card_ends EXIT
# The largest number of a column, 1 to 3.
most_on_card() { awk -F, -v k="$1" '$k + 0 > most { most = $k + 0 } END { print most + 0 }' "$log/card"; }

# family NAME: " wgmma" behind what is run with that one; the usual one is not named
family() { [ "$1" = mma ] || echo " $1"; }

kernels() {
    local precision test f list=""
    for precision in bf16 fp16 fp32; do
        for test in $tests; do list="$list $precision/$test"; done
    done
    # shellcheck disable=SC2086  # a list of words
    build kernels $list
    for precision in bf16 fp16 fp32; do
        for test in $tests; do part 60 "$precision $test" "$bin/$precision/$test"; done
    done
    for f in $families; do
        [ "$f" != mma ] || continue
        for precision in bf16 fp16; do
            part 60 "$precision cuda_attention $f" env ATTENTION="$f" "$bin/$precision/cuda_attention"
        done
    done
}

model() {
    local precision f
    build model bf16/test_gpt fp32/test_gpt bf16/test_trainer bf16/train_gpt fp16/train_gpt fp32/train_gpt
    for precision in bf16 fp32; do part 60 "$precision test_gpt" "$bin/$precision/test_gpt"; done
    part 60 "bf16 test_trainer" "$bin/bf16/test_trainer"
    for f in $families; do
        [ "$f" = mma ] || part 60 "bf16 test_gpt $f" env ATTENTION="$f" "$bin/bf16/test_gpt"
        part 240 "same bits, loss beside float32$(family "$f")" env ATTENTION="$f" \
            dev/test/system/check_precision.py --gpu --build "$bin" ${TEXT:+"$TEXT"}
    done
}

bench() {
    build bench bf16/bench_gpu
    for f in $families; do
        if [ "$f" = mma ]; then
            card_begins
            part 180 "bench_gpu" "$bin/bf16/bench_gpu" --json "$log/bench_gpu.json"
            card_ends
            echo "SM clock up to $(most_on_card 2) MHz, power up to $(most_on_card 3) W" | tee -a "$log/bench_gpu.log"
        else
            part 60 "bench_gpu attention $f" env ATTENTION="$f" "$bin/bf16/bench_gpu" --only attention \
                --json "$log/bench_gpu_$f.json"
        fi
    done
}

# Tokens of 16 bits for one step of any model, and some more: some are much more frequent than others, as in texts.
make_tokens() {
    [ -s "$log/tokens.bin" ] || python3 -c '
import array, random, sys
random.seed(1)
array.array("H", (int(32000 * random.random() ** 4) for _ in range(1 << 20))).tofile(open(sys.argv[1], "wb"))' \
    "$log/tokens.bin"
}


# peer FILE MICRO OPTIONS...: PyTorch's step. It may need more memory than ours: then with a quarter of the sequences at
# once. That it does not run at all is no failure of ours.
peer() {
    local micro
    for micro in $2 $((($2 + 3) / 4)); do
        dev/bench/peer_pytorch.py "${@:3}" --micro "$micro" && return
    done
    echo "did not run: $(grep -a 'rror' "$1" | tail -n 1 | cut -c 1-45)"
}
export -f peer

# train_one NAME FLOOR_MS GOAL_MS GFLOP GFLOP_FULL GIB MICRO BATCH SEQ VOCAB: our step, then PyTorch's; a line of JSON
train_one() {
    local f ours file rate ms peer peer_rate peer_file version memory clock
    for f in $families; do
        ours="training step, $1$(family "$f")"
        file=$(file_of "$ours")
        card_begins
        part 150 "$ours" env ATTENTION="$f" "$bin/bf16/train_gpt" --data "$log/tokens.bin" --model "$1" --seq "$9" \
            --vocab "${10}" --micro-batch "$7" --global-batch "$8" --steps 10 --warmup 2 --eval-every 0 --sample-every 0
        local worked=$?
        card_ends
        [ $worked = 0 ] || continue
        # the median of the last eight steps
        rate=$(sed -n 's/^step.*| *\([0-9]*\) tok\/s.*/\1/p' "$file" | tail -n 8 | sort -n | sed -n 5p)
        [ -n "$rate" ] || { row FAIL 0 "$ours" "it prints no rate"; continue; }
        memory=$(most_on_card 1) clock=$(most_on_card 2)
        ms=$(awk -v r="$rate" -v B="$8" -v T="$9" 'BEGIN { printf "%.2f", 1e3 * B * T / r }')
        awk -v name="$1$(family "$f")" -v r="$rate" -v ms="$ms" -v floor="$2" -v goal="$3" -v gf="$4" -v full="$5" \
            -v gib="$memory" -v plan="$6" -v clock="$clock" 'BEGIN {
            printf "%-18s %9.0f tokens/s %9.2f ms  floor %8.2f (%3.0f %%)  goal %8.2f (%3.0f %%)  ", \
                name, r, ms, floor, 100 * floor / ms, goal, 100 * goal / ms
            printf "MFU %4.1f %% causal %4.1f %% full  %6.1f GiB (planned %.1f)  SM clock up to %d MHz\n", \
                r * gf / 9894, r * full / 9894, gib / 1024, plan, clock }' |
            tee -a "$log/steps"
        printf '{"model":"%s","attention":"%s","tokens_per_s":%s,"ms":%s,"floor_ms":%s,"goal_ms":%s,%s}\n' "$1" "$f" \
            "$rate" "$ms" "$2" "$3" "\"memory_mib\":$memory,\"sm_clock\":$clock" >>"$log/train.json"
    done
    [ -n "$torch" ] || return
    peer="PyTorch, $1" peer_file=$(file_of "PyTorch, $1")
    part 200 "$peer" peer "$peer_file" "$7" --device cuda --compile --model "$1" --B "$8" --T "$9" --vocab "${10}" \
        --steps 8 || return
    peer_rate=$(sed -n 's/.*"tokens_per_s": \([0-9.]*\).*/\1/p' "$peer_file")
    version=$(sed -n 's/.*"version": "\([^"]*\)".*/\1/p' "$peer_file")
    [ -z "$peer_rate" ] || awk -v r="$peer_rate" -v we="${rate:-0}" -v name="$1" -v v="$version" \
        'BEGIN { printf "%-18s %9.0f tokens/s by PyTorch %s; we are %.2f times as fast\n", name, r, v, we / r }' |
        tee -a "$log/steps"
    grep -a '^{' "$peer_file" >>"$log/train.json"
}

train() {
    local line
    build train bf16/train_gpt
    # with the flags of all else: others would have make build everything anew
    make -s DEVICE=cuda BUILD="$BUILD" GPU_ARCH="$arch" "$BUILD/roofline" >"$log/roofline.log" 2>&1 ||
        { row FAIL 0 roofline "does not build"; return; }
    make_tokens
    torch=""
    if python3 -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
        torch=yes
    else
        row "left out" 0 "PyTorch beside" "python3 has no torch that sees a GPU"
    fi
    : >"$log/train.json"
    "$BUILD/roofline" --numbers >"$log/numbers" || { row FAIL 0 roofline "$BUILD/roofline --numbers"; return; }
    for wanted in ${models:-$(cut -d ' ' -f 1 "$log/numbers")}; do
        line=$(grep "^$wanted " "$log/numbers") || { row FAIL 0 "training step, $wanted" \
            "there are $(cut -d ' ' -f 1 "$log/numbers" | tr '\n' ' ')"; continue; }
        # shellcheck disable=SC2086  # a list of numbers
        train_one $line
    done
}

meshes() {
    build meshes fp32/test_equivalence fp32/train_gpt bf16/train_gpt bf16/cuda_comm
    if command -v "${MPIRUN:-mpirun}" >/dev/null; then
        part 40 "messages, through the host" scripts/mpirun.sh -np 2 "$bin/bf16/cuda_comm" --short
        part 90 "meshes, through the host" scripts/mpirun.sh -np 2 "$bin/fp32/test_equivalence" --short
        part 90 "sites, through the host" dev/test/system/check_replicas.py --short --train "$bin/fp32/train_gpt"
    else
        row "left out" 0 "meshes, through the host" "there is no MPI"
    fi
    if nm -D "$bin/fp32/train_gpt" 2>/dev/null | grep -q ncclCommInitRank; then
        part 40 "messages, NCCL" nccl_ranks 3 "$bin/bf16/cuda_comm" --short
        part 90 "meshes, NCCL" nccl_ranks 2 "$bin/fp32/test_equivalence" --short
        part 60 "training, NCCL, 4 ranks" nccl_ranks 4 "$bin/bf16/train_gpt" --tp 2 --pp 2 --steps 20 --sample-every 0
        part 60 "sites, NCCL, 4 ranks" nccl_ranks 4 "$bin/bf16/train_gpt" --sites 2 --dp-mode diloco --local-steps 4 \
            --steps 20 --sample-every 0
    else
        row "left out" 0 "meshes, NCCL" "built without NCCL"
    fi
}

sanitizer() {
    local sanitizer list=bf16/bench_gpu test f
    sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
    for test in $tests; do list="$list bf16/$test"; done
    # shellcheck disable=SC2086  # a list of words
    build sanitizer $list
    if [ -z "$sanitizer" ] || ! "$sanitizer" "$bin/bf16/bench_gpu" --tiny --only memory 2>&1 |
        grep -q 'ERROR SUMMARY: 0 errors'; then
        row "left out" 0 "compute-sanitizer" "not there, or it does not work on this machine"
        return
    fi
    for test in $tests; do
        part 40 "memcheck $test" "$sanitizer" --error-exitcode 9 --tool memcheck "$bin/bf16/$test" --short
        part 40 "racecheck $test" "$sanitizer" --error-exitcode 9 --tool racecheck "$bin/bf16/$test" --short
    done
    for f in $families; do
        [ "$f" = mma ] || part 60 "memcheck cuda_attention $f" env ATTENTION="$f" "$sanitizer" --error-exitcode 9 \
            --tool memcheck "$bin/bf16/cuda_attention" --short
    done
}

for part in $all_parts; do
    if wants "$part"; then "$part"; fi
done
{
    cat "$log/head"
    echo
    cat "$table"
    ! wants bench || for file in "$log"/bench_*.log; do echo && cat "$file"; done
    echo
    cat "$log/steps"
} >"$out" 2>/dev/null
[ ! -s "$log/steps" ] || cat "$log/steps"
passed=$(grep -c '^ok' "$table")
left_out=$(grep -c '^left out' "$table")
echo "$passed passed, $failures failed, $left_out left out, $((SECONDS - started)) s; all of it is in $out"
[ $failures = 0 ]
