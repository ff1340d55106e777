#!/bin/bash
# scripts/gpu_check.sh [OUT]   everything that only a machine with a GPU can tell, in one call of less than 9 minutes:
#
#   1. builds the kernels' tests, the trainer and the benchmarks for this GPU
#   2. every kernel against the C reference: random inputs, poisoned outputs, several shapes, bf16, fp16, fp32
#   3. the whole model against PyTorch's numbers and against itself
#   4. messages between several ranks on this one GPU, then meshes against one rank: through the host (MPI), and through
#      NCCL, which refuses ranks that share a GPU unless they seem to be on hosts of their own (NCCL_HOSTID)
#   5. compute-sanitizer on the kernels
#   6. measurements: the kernels, and training steps
#
# Prints a line for each, last the whole in a table, which is also written to OUT (build/gpu_check.txt) together with the
# measurements. Exit status 0 only if nothing failed. What cannot be run here (no MPI, no NCCL, no compute-sanitizer) is
# said and left out.
set -u
cd "$(dirname "$0")/.." || exit 1
out=${1:-build/gpu_check.txt}
BUILD=${BUILD:-build}
log=$BUILD/gpu_check
mkdir -p "$log"
started=$SECONDS
limit=530 # seconds for everything
failures=0
table=$log/table
: >"$table"

left() { echo $((limit - SECONDS + started)); }

# row RESULT SECONDS WHAT MORE
row() {
    [ "$1" != FAIL ] || failures=$((failures + 1))
    printf '%-8s %4d s  %-46s %s\n' "$1" "$2" "$3" "$4" | tee -a "$table"
}

# part SECONDS WHAT COMMAND...: runs it for so long at most; its last line says what came out
part() {
    local most=$1 what=$2 begin=$SECONDS file foreground result=ok
    shift 2
    file=$log/$(echo "$what" | tr ' /,' '___').log
    [ "$(left)" -gt "$most" ] || most=$(left)
    if [ "$most" -lt 5 ]; then
        row FAIL 0 "$what" "no time left"
        return 1
    fi
    # mpirun takes a second signal, to its group, as "leave at once", without its ranks
    case $1 in scripts/mpirun.sh) foreground=--foreground ;; *) foreground=--verbose ;; esac
    timeout $foreground -k 5 "$most" bash -c '"$@"' part "$@" >"$file" 2>&1 </dev/null || result=FAIL
    [ $result = ok ] || grep -a '^FAIL\|rror' "$file" | head -n 5
    row $result $((SECONDS - begin)) "$what" "$(tail -n 1 "$file" | cut -c 1-60)"
    [ $result = ok ]
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
name=$(nvidia-smi --query-gpu=name,driver_version,clocks.max.sm --format=csv,noheader | head -n 1) || exit 1
{
    echo "$(date -u +%Y-%m-%d), $name, commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown)"
} | tee "$log/head"

export log BUILD
export -f nccl_ranks
# 1. build
tests=""
for file in dev/test/cuda_*.cu; do
    test=$(basename "$file" .cu)
    case $test in cuda_bugs | cuda_hopper_bugs | cuda_comm) ;; *) tests="$tests $test" ;; esac # of the emulator; of several ranks
done
targets="$BUILD/cuda/bf16/train_gpt $BUILD/cuda/fp32/train_gpt $BUILD/cuda/bf16/test_gpt $BUILD/cuda/fp32/test_gpt"
targets="$targets $BUILD/cuda/fp32/test_equivalence $BUILD/cuda/bf16/cuda_comm $BUILD/cuda/bf16/bench_gpu"
targets="$targets $BUILD/cuda/bf16/bench_wgmma"
for precision in bf16 fp16 fp32; do
    for test in $tests; do targets="$targets $BUILD/cuda/$precision/$test"; done
done
# shellcheck disable=SC2086  # a list of words
part 240 "build" make -k -j "$(getconf _NPROCESSORS_ONLN)" DEVICE=cuda GPU_ARCH=native $targets

# 2. kernels, 3. model
for precision in bf16 fp16 fp32; do
    for test in $tests; do part 60 "$precision $test" "$BUILD/cuda/$precision/$test"; done
done
for precision in bf16 fp32; do part 60 "$precision test_gpt" "$BUILD/cuda/$precision/test_gpt"; done

# 4. messages, meshes
if command -v "${MPIRUN:-mpirun}" >/dev/null; then
    part 40 "messages, through the host" scripts/mpirun.sh -np 2 "$BUILD/cuda/bf16/cuda_comm" --short
    part 90 "meshes, through the host" scripts/mpirun.sh -np 2 "$BUILD/cuda/fp32/test_equivalence" --short
    part 90 "sites, through the host" dev/test/check_replicas.py --short --train "$BUILD/cuda/fp32/train_gpt"
else
    row "left out" 0 "meshes, through the host" "there is no MPI"
fi
if nm -D "$BUILD/cuda/fp32/train_gpt" 2>/dev/null | grep -q ncclCommInitRank; then
    part 40 "messages, NCCL" nccl_ranks 3 "$BUILD/cuda/bf16/cuda_comm" --short
    part 90 "meshes, NCCL" nccl_ranks 2 "$BUILD/cuda/fp32/test_equivalence" --short
    part 60 "training, NCCL, 4 ranks" nccl_ranks 4 "$BUILD/cuda/bf16/train_gpt" --tp 2 --pp 2 --steps 20 --sample-every 0
    part 60 "sites, NCCL, 4 ranks" nccl_ranks 4 "$BUILD/cuda/bf16/train_gpt" --sites 2 --dp-mode diloco --local-steps 4 --steps 20 --sample-every 0
else
    row "left out" 0 "meshes, NCCL" "built without NCCL"
fi

# 5. compute-sanitizer
sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
if [ -n "$sanitizer" ] && "$sanitizer" "$BUILD/cuda/bf16/bench_gpu" --tiny 2>&1 | grep -q 'ERROR SUMMARY: 0 errors'; then
    for test in $tests; do
        part 40 "memcheck $test" "$sanitizer" --error-exitcode 9 --tool memcheck "$BUILD/cuda/bf16/$test" --short
        part 40 "racecheck $test" "$sanitizer" --error-exitcode 9 --tool racecheck "$BUILD/cuda/bf16/$test" --short
    done
else
    row "left out" 0 "compute-sanitizer" "not there, or it does not work on this machine"
fi

# 6. measurements
part 120 "bench_gpu" "$BUILD/cuda/bf16/bench_gpu"
part 60 "bench_wgmma" "$BUILD/cuda/bf16/bench_wgmma"
od -An -v -tu2 -N 4000000 /dev/urandom | tr -d '\n' >"$log/random.txt" # digits
step() { # WHAT OPTIONS...: a training step; its last line is the last step's
    "$BUILD/cuda/bf16/train_gpt" --data "$log/random.txt" --steps 8 --warmup 2 --eval-every 0 --sample-every 0 "${@:2}" |
        tee "$log/$1.out" | grep '^step' | tail -n 1
}
training() {
    set -o pipefail
    step gpt2-124M --model gpt2-124M --seq 1024 --vocab 50304 --micro-batch 64 --global-batch 64
}
export -f step training
part 60 "training step, gpt2-124M, 64 x 1024" training

{
    cat "$log/head"
    echo
    cat "$table"
    echo
    cat "$log/bench_gpu.log"
    echo
    cat "$log/bench_wgmma.log"
    echo
    grep -h '^device\|^memory\|^step' "$log"/gpt2-124M.out
} >"$out" 2>/dev/null
passed=$(grep -c '^ok' "$table")
echo "$passed passed, $failures failed, $((SECONDS - started)) s; all of it is in $out"
[ $failures = 0 ]
