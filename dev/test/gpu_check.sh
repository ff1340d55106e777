#!/bin/bash
# dev/test/gpu_check.sh [--only PART,PART...] [--steps REGEX] [--models "NAME NAME..."] [--built] [OUT]   checks and
# measures on a GPU; of the parts only the steps whose names have REGEX ("wgmma", "memcheck bf16/cuda_rows")
# dev/test/gpu_check.sh --list                                                the programs that the parts build
#
# The parts, in the order in which they run:
#
#   preflight  tools and libraries; a product by cuBLASLt, a copy by TMA: 20 s. Without cuBLASLt nothing else runs
#   kernels    every kernel beside the C reference: random inputs, several shapes; bf16, fp32
#   compare    a step of five models beside the CPU's, tensor by tensor (make compare); logits of more than 2^31 numbers
#   model      the model beside PyTorch's numbers; 200 steps of a small GPT, twice with the same bits, and the loss in
#              bf16 beside float32 (check_precision.py; TEXT names its text, by default the project's headers)
#   bench      the kernels of GPT-2 124M beside their floors and goals; attention of all models
#   train      training steps of GPT-2 124M: tokens/s, MFU, memory; PyTorch (compiled, flash attention) in the same call
#   models     the same, and the kernels, of the other models of dev/bench/roofline.py, or of those that --models names
#   meshes     several ranks on this GPU: messages, and meshes beside one rank; by MPI and by NCCL
#   sanitizer  compute-sanitizer's memcheck and racecheck of the kernels
#
# --built: the programs are in BUILD/cuda already, from a machine with nvcc and no GPU; nothing is built.
#
# On a Hopper GPU attention runs by mma.sync and by wgmma. A call ends after SECONDS_LIMIT (540) seconds, builds
# included. Each step has a limit, too, and a row: ok, FAIL, timed out, or left out (no time for it; no MPI, NCCL,
# PyTorch or sanitizer). After each part, and when a signal ends the call, the folder OUT (build/gpu_check) gets
#
#   report.txt     the latest call of each part: the card, rows, measurements, clocks, power, temperature, cuBLASLt's
#                  choices (MATMUL_LIST), and the last 40 lines of each log of a step that failed or timed out
#   logs.tar.gz    all logs, and what bench_gpu measured as JSON
#
# The exit status is 0 if no step failed or timed out.
set -u
cd "$(dirname "$0")/../.." || exit 1
all_parts="preflight kernels compare model bench train models meshes sanitizer"
BUILD=${BUILD:-build}
only=$all_parts steps="" models="" out="" list="" built=""
usage() {
    echo "gpu_check.sh: $*; the parts are $all_parts" >&2
    exit 2
}
while [ $# -gt 0 ]; do
    case $1 in
    --only | --models | --steps) [ $# -gt 1 ] || usage "$1 needs a value" ;;&
    --steps) steps=$2 && shift ;;
    --only) only=${2//,/ } && shift ;;
    --models) models=$2 && shift ;;
    --list) list=yes ;;
    --built) built=yes ;;
    -*) usage "$1 is not known" ;;
    *) [ -z "$out" ] || usage "$1: there is $out already"; out=$1 ;;
    esac
    shift
done
for part in $only; do
    [[ " $all_parts " = *" $part "* ]] || usage "--only $part is not known"
done
wants() { [[ " $only " = *" $1 "* ]]; }

programs_of() { # PART: what it builds, as PRECISION/PROGRAM
    case $1 in
    preflight) echo bf16/preflight_{cublaslt,tma} ;;
    kernels) echo {bf16,fp32}/cuda_{rows,update,matmul,attention} bf16/cuda_{hopper,emulator} ;;
    compare) echo bf16/{test_gpt,train_gpt} ;; # and the CPU's, BUILD/bf16/test_gpt
    model) echo {bf16,fp32}/test_gpt bf16/test_trainer {bf16,fp32}/train_gpt ;;
    bench) echo bf16/bench_gpu ;;
    train) echo bf16/train_gpt ;;
    models) echo bf16/{train_gpt,bench_gpu} ;;
    meshes) echo fp32/{train_gpt,test_equivalence} bf16/{train_gpt,cuda_comm} ;;
    sanitizer) echo bf16/cuda_{rows,update,matmul,attention} ;;
    esac
}
all_programs() { for one in $only; do programs_of "$one"; done | tr ' ' '\n' | sort -u; }
[ -z "$list" ] || { all_programs; exit; }

# ---- the table, the limits, the report
logs=$BUILD/gpu_check/logs
out=${out:-$BUILD/gpu_check}
bin=$BUILD/cuda
left() { echo $((${SECONDS_LIMIT:-540} - SECONDS)); }
mkdir -p "$logs" "$out" || exit 1
declare -A rows=([ok]=0 [FAIL]=0 ["timed out"]=0 ["left out"]=0)
log="" running="" watcher=""

# row RESULT SECONDS STEP MORE
row() {
    rows[$1]=$((${rows[$1]} + 1))
    printf '%-9s %4d s  %-46s %s\n' "$1" "$2" "$3" "$4" | tee -a "$log/rows"
}

log_of() { echo "$log/${1//[ \/,]/_}.log"; }

# step SECONDS NAME COMMAND...: runs it for so long at most; its output goes to a log, whose last line the row has
step() {
    local most=$1 name=$2 begin=$SECONDS file foreground=--verbose status
    shift 2
    [[ $name = build || $name =~ $steps ]] || return 1
    file=$(log_of "$name")
    if [ "$(left)" -lt $((most / 8 + 5)) ]; then
        row "left out" 0 "$name" "the call ends in $(left) s, and this may take $most: --only $part"
        return 1
    fi
    [ "$(left)" -gt "$most" ] || most=$(left)
    # timeout would signal mpirun twice, as a process and as a group, and at the second signal mpirun leaves its ranks
    # behind: --foreground signals it once
    [ "$1" != scripts/mpirun.sh ] || foreground=--foreground
    timeout $foreground -k 5 "$most" bash -c '"$@"' step "$@" >"$file" 2>&1 </dev/null &
    running=$!
    wait $running
    status=$?
    running=""
    case $status in
    0) row ok $((SECONDS - begin)) "$name" "$(tail -n 1 "$file" | cut -c 1-60)"; return ;;
    124 | 137) row "timed out" $((SECONDS - begin)) "$name" "of $most s" ;;
    *) row FAIL $((SECONDS - begin)) "$name" "$status: $(grep -a -m 1 '^FAIL\|rror\|\*\*\*' "$file" | cut -c 1-90)" ;;
    esac
    echo "$file" >>"$log/unsuccessful"
    return $status
}

make_here() { make DEVICE=cuda BUILD="$BUILD" GPU_ARCH="$arch" "$@"; }
export -f make_here

# Builds the programs of all parts of this call at once, when the first part begins. The flags are the preflight's: with
# other flags make would build everything again.
build() {
    [ -z "$built" ] || return
    built=yes
    local cpu=""
    ! wants compare || cpu=$BUILD/bf16/test_gpt
    # shellcheck disable=SC2046  # a list of words
    step 300 build make_here -k -j "$(getconf _NPROCESSORS_ONLN)" plan $cpu $(all_programs | sed "s|^|$bin/|")
}

# measure SECONDS NAME COMMAND...: a step; meanwhile the card's memory in use, clock, power and temperature are read
measure() {
    local status
    nvidia-smi --query-gpu=memory.used,clocks.sm,power.draw,temperature.gpu --format=csv,noheader,nounits -lms 200 \
        >"$log/card" 2>/dev/null &
    watcher=$!
    step "$@"
    status=$?
    kill $watcher 2>/dev/null
    wait $watcher 2>/dev/null
    watcher=""
    [ $status != 0 ] || echo "$2: memory up to $(card_most 1) MiB, SM clock up to $(card_most 2) MHz, power up to \
$(card_most 3) W, temperature up to $(card_most 4) C" >>"$log/measured"
    return $status
}
card_most() { awk -F, -v k="$1" '$k + 0 > most { most = $k + 0 } END { print most + 0 }' "$log/card"; }

write_report() {
    for one in $all_parts; do
        [ -s "$logs/$one/rows" ] || continue
        echo "==== $one"
        cat "$logs/$one/"{head,rows,measured,bench*.log} 2>/dev/null | grep -v '^matmul:'
        grep -h '^matmul:\|^versions:' "$logs/$one/"*.log
        [ ! -s "$logs/$one/unsuccessful" ] || xargs -d '\n' tail -v -n 40 <"$logs/$one/unsuccessful"
    done >"$out/report.txt"
    tar -czf "$out/logs.tar.gz" -C "$logs" --exclude=tokens.bin .
}
at_end() {
    # shellcheck disable=SC2086  # numbers, or nothing
    [ -z "$running$watcher" ] || kill $running $watcher 2>/dev/null
    write_report
    echo "${rows[ok]} passed, ${rows[FAIL]} failed, ${rows[timed out]} timed out, ${rows[left out]} left out," \
        "$SECONDS s; $out/report.txt, $out/logs.tar.gz"
}

# ---- the machine
PATH=$PATH:/usr/local/nvidia/bin:/usr/local/cuda/bin
command -v nvidia-smi >/dev/null || { echo "gpu_check.sh: there is no nvidia-smi here: no GPU" >&2; exit 1; }
query() { nvidia-smi --query-gpu="$1" --format=csv,noheader | head -n 1; }
capability=$(query compute_cap | tr -d '. ')
memory=$(query memory.total | tr -dc 0-9) # MiB
# Hopper's own instructions (wgmma) are only made for the architecture "90a", and run on nothing else.
arch=native families=mma
[ "$capability" != 90 ] || arch=90a families="mma wgmma"
card=name,driver_version,memory.total,clocks.max.sm,clocks.sm,power.draw,temperature.gpu
commit=${COMMIT:-$(git rev-parse --short HEAD 2>/dev/null || echo unknown)} # COMMIT: for a copy without .git
export BUILD arch

# nccl_ranks N PROGRAM...: by NCCL_HOSTID each rank seems to be on a host of its own, so that NCCL lets them share a GPU
nccl_ranks() {
    NCCL_SOCKET_IFNAME=lo NCCL_NET=Socket NCCL_IB_DISABLE=1 NCCL_NVLS_ENABLE=0 NCCL_MAX_CTAS=1 \
        scripts/mpirun.sh -np "$1" sh -c 'NCCL_HOSTID=rank${OMPI_COMM_WORLD_RANK:-$PMI_RANK} exec "$@"' sh "${@:2}"
}
export -f nccl_ranks

# uses FUNCTION LIBRARY: whether the trainer was built with it
uses() {
    nm -D --undefined-only "$bin/fp32/train_gpt" 2>/dev/null | grep -q "$1" && return
    row "left out" 0 "meshes, $2" "built without $2" && return 1
}

# ---- the parts
tools() {
    make_here -s report
    command -v g++ nvcc nm mpirun python3 compute-sanitizer cuobjdump
    python3 -c 'import torch; print("PyTorch", torch.__version__, "sees a GPU:", torch.cuda.is_available())'
    echo "$(getconf _NPROCESSORS_ONLN) cores, free: $(df -h . | awk 'END { print $4 }') of disk"
}
export -f tools

preflight() {
    step 60 "tools" tools
    cp "$(log_of tools)" "$log/measured"
    # shellcheck disable=SC2046  # a list of words
    [ -n "$built" ] || step 90 "build preflight" make_here -j 2 $(programs_of preflight | sed "s|[^ ]*/|$bin/&|g") ||
        return
    step 30 "TMA" "$bin/bf16/preflight_tma" || families=mma
    step 60 "cuBLASLt" "$bin/bf16/preflight_cublaslt"
}

kernels() {
    local program
    build
    for program in $(programs_of kernels); do
        case $program$families in # without ATTENTION: wgmma on a Hopper GPU, and what has heads of other sizes
        *16/cuda_attention*wgmma) step 60 "$program, mma" env ATTENTION=mma "$bin/$program" ;;
        esac
        step 60 "$program" "$bin/$program"
    done
}

# A shard of tokens for one step of any model, and some more: some are much more frequent than others, as in texts.
make_tokens() {
    [ -s "$logs/tokens.bin" ] || PYTHONPATH=dev/test/system python3 -c '
import checks, random, sys
random.seed(1)
checks.write_shard(sys.argv[1], [int(32000 * random.random() ** 4) for _ in range(1 << 20)])' "$logs/tokens.bin"
}

# Two steps of GPT-2 124M with micro-batches of 64, whose logits are 3.3 G numbers, beside 16.
many_logits() {
    local micro
    [ "$memory" -gt 70000 ] || { row "left out" 0 "3.3 G logits" "they need 70 GB" && return; }
    make_tokens
    for micro in 16 64; do
        step 90 "micro-batches of $micro" "$bin/bf16/train_gpt" --data "$logs/tokens.bin" --model gpt2-124M --seq 1024 \
            --vocab 50304 --micro-batch $micro --global-batch 64 --steps 2 --warmup 1 --eval-every 0 --sample-every 0
    done
    sed -n 's/^step.* loss \([0-9.]*\) | norm \([0-9.]*\) .*/\1 \2/p' "$log"/micro-batches_of_{16,64}.log |
        xargs >"$log/numbers"
    awk '{ for (i = 1; i <= NF / 2; i++) wrong += ($i - $(i + NF / 2)) ^ 2 > ($i * 1e-3) ^ 2 }
        END { exit wrong > 0 || NF < 8 }' "$log/numbers" ||
        row FAIL 0 "3.3 G logits" "losses and norms: $(cat "$log/numbers")"
}

compare() {
    local model f references=()
    build
    for model in gpt2 llama pieces gpt2-124M llama-130M; do
        references+=("$logs/$model.reference")
        step 60 "$model by the CPU" "$BUILD/bf16/test_gpt" --write "$logs/$model.reference" "$model"
    done
    for f in $families; do
        step 90 "beside the CPU, $f" env ATTENTION="$f" "$bin/bf16/test_gpt" --compare "${references[@]}"
    done
    rm -f "${references[@]}"
    many_logits
}

model() {
    build
    for program in {fp32,bf16}/test_gpt; do step 60 "$program" "$bin/$program"; done
    for f in $families; do
        step 200 "same bits, loss beside float32, $f" env ATTENTION="$f" \
            dev/test/system/check_precision.py --gpu --build "$bin" ${TEXT:+"$TEXT"}
    done
    step 60 "bf16/test_trainer" "$bin/bf16/test_trainer"
}

bench() {
    build
    for f in $families; do
        measure 60 "bench attention $f" env ATTENTION="$f" MATMUL_LIST=1 "$bin/bf16/bench_gpu" --only attention \
            --json "$log/attention_$f.json"
    done
    measure 150 "bench gpt2-124M" env MATMUL_LIST=1 "$bin/bf16/bench_gpu" --model gpt2-124M --json "$log/124M.json"
    grep -h '^gpt2-124M .*attention' "$log"/bench_attention_*.log | tee -a "$log/measured"
}

# each_model FUNCTION: calls it for each line of $log/models, whose numbers go by name: floor and goal in ms, GFLOP of a
# token, causal and full, GiB, the step's shape
each_model() { while read -r model floor goal gflop full gib micro batch seq vocab _; do $1; done <"$log/models"; }

# ours: training steps of the model, by each family
ours() {
    local name rate
    for f in $families; do
        name="training step, $model, $f"
        measure 150 "$name" env ATTENTION="$f" MATMUL_LIST=1 "$bin/bf16/train_gpt" --data "$logs/tokens.bin" \
            --model "$model" --seq "$seq" --vocab "$vocab" --micro-batch "$micro" --global-batch "$batch" --steps 10 \
            --warmup 2 --eval-every 0 --sample-every 0 || continue
        # the median of the last eight steps
        rate=$(sed -n 's/^step.*| *\([0-9]*\) tok\/s.*/\1/p' "$(log_of "$name")" | tail -n 8 | sort -n | sed -n 5p)
        [ -n "$rate" ] || { row FAIL 0 "$name" "prints no rate"; continue; }
        awk -v name="$model $f" -v r="$rate" -v tokens=$((batch * seq)) -v floor="$floor" -v goal="$goal" \
            -v gf="$gflop" -v full="$full" -v gib="$(card_most 1)" -v plan="$gib" 'BEGIN {
            ms = 1e3 * tokens / r
            printf "%-18s %9.0f tokens/s %9.2f ms  H200: floor %8.2f (%3.0f %%), goal %8.2f (%3.0f %%)  ", \
                name, r, ms, floor, 100 * floor / ms, goal, 100 * goal / ms
            printf "MFU %4.1f %% causal %4.1f %% full  %6.1f GiB with trials (planned %.1f)\n", \
                r * gf / 9894, r * full / 9894, gib / 1024, plan }' | tee -a "$log/measured"
    done
}

# peers: the same by PyTorch. If PyTorch itself fails (memory, compiler) the row is ok, and says that it did not run.
peers() {
    # shellcheck disable=SC2016  # of the inner shell
    step 200 "PyTorch, $model" bash -c 'dev/bench/peer_pytorch.py "$@" || echo "did not run"' peer --device cuda \
        --compile --model "$model" --micro "$micro" --B "$batch" --T "$seq" --vocab "$vocab" --steps 8 || return
    sed -n "s/.*\"tokens_per_s\": \([0-9.]*\).*/$model: \1 tokens\/s by PyTorch/p" "$(log_of "PyTorch, $model")" |
        tee -a "$log/measured"
}

# train_models NAME...: our steps of all, then PyTorch's. Floors and goals are an H200's; the memory includes what the
# trials of matrix products borrow (kernels/matmul.cuh).
train_models() {
    local name absent=FAIL
    build
    make_tokens
    # a model that does not fit into this GPU ends the list
    dev/bench/roofline.py --memory $((memory / 1024 - 1)) >"$log/numbers" 2>"$log/roofline.log"
    ! grep -q 'no micro-batch fits' "$log/roofline.log" || absent="left out"
    : >"$log/models"
    for name in "$@"; do
        grep "^$name " "$log/numbers" >>"$log/models" ||
            row "$absent" 0 "training steps, $name" "roofline.py: $(tail -n 1 "$log/roofline.log")"
    done
    each_model ours
    timeout 90 python3 -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null ||
        { row "left out" 0 "PyTorch beside" "python3 has no torch that sees a GPU" && return; }
    each_model peers
}

train() { train_models gpt2-124M; }

models() {
    local name names=${models:-gpt2-1558M llama-7B gpt2-350M gpt2-774M llama-1.1B}
    # shellcheck disable=SC2086  # a list of words
    train_models $names
    for name in $names; do
        measure 100 "bench $name" env MATMUL_LIST=1 "$bin/bf16/bench_gpu" --model "$name" --only products,memory \
            --json "$log/$name.json"
    done
}

meshes() {
    build
    if uses MPI_Init MPI; then
        step 40 "messages, MPI" scripts/mpirun.sh -np 2 "$bin/bf16/cuda_comm" --short
        step 90 "meshes, MPI" scripts/mpirun.sh -np 2 "$bin/fp32/test_equivalence" --short
        step 150 "sites, MPI" dev/test/system/check_replicas.py --short --train "$bin/fp32/train_gpt"
    fi
    uses ncclCommInitRank NCCL || return
    local few=(--steps 4 --sample-every 0) # as ranks take turns on the GPU
    step 60 "messages, NCCL" nccl_ranks 3 "$bin/bf16/cuda_comm" --short --seconds 50
    step 60 "training, NCCL, 2 ranks" nccl_ranks 2 "$bin/bf16/train_gpt" "${few[@]}" --tp 2
    step 60 "training, NCCL, 4 ranks" nccl_ranks 4 "$bin/bf16/train_gpt" "${few[@]}" --tp 2 --pp 2
    step 60 "a folded pipeline, NCCL, 4 ranks" nccl_ranks 4 "$bin/bf16/train_gpt" "${few[@]}" --pp 4 --schedule zb-v
    step 60 "sites, NCCL, 4 ranks" nccl_ranks 4 "$bin/bf16/train_gpt" "${few[@]}" --sites 2 --dp-mode diloco \
        --local-steps 2
    step 120 "meshes, NCCL" nccl_ranks 2 "$bin/fp32/test_equivalence" --short
}

sanitizer() {
    local tool program family
    # racecheck without wgmma: it does not see that a warp's barrier and an arrival of its first lane order what the
    # other lanes did, and reports races. If all lanes arrive it reports none (an H100, 2026-11-26).
    command -v compute-sanitizer || { row "left out" 0 "compute-sanitizer" "not found" && return; }
    build
    for tool in memcheck racecheck; do
        for program in $(programs_of sanitizer); do
            case $tool$program in racecheck*/cuda_attention) family=plain ;; *) family="" ;; esac
            step 120 "$tool $program${family:+, $family}" env ATTENTION=$family compute-sanitizer --error-exitcode 9 \
                --tool $tool "$bin/$program" --short
        done
        step 120 "$tool bf16/cuda_attention, mma" env ATTENTION=mma compute-sanitizer --error-exitcode 9 --tool $tool \
            "$bin/bf16/cuda_attention" --short
    done
}

trap at_end EXIT
trap 'exit 1' TERM INT HUP
for part in $all_parts; do
    wants "$part" || continue
    log=$logs/$part
    rm -rf "$log"
    mkdir -p "$log"
    echo "$(date -u '+%Y-%m-%d %H:%M'), commit $commit, sm_$arch, $(query "$card")" | tee "$log/head"
    "$part" || [ "$part" != preflight ] || { row "left out" 0 "all other parts" "the preflight failed" && exit 1; }
    write_report
done
[ "${rows[FAIL]}${rows[timed out]}" = 00 ]
