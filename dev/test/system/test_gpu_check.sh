#!/bin/bash
# Does dev/test/gpu_check.sh run all of its parts, count what fails, hangs or is missing, and end in time; and does make
# find what CUDA needs? Without a GPU: programs of the same names stand in for nvidia-smi, nvcc, make, mpirun, nm,
# compute-sanitizer, PyTorch and for all that make would have built; they note how they were called, and say what the
# real ones would. Needs ./plan. Last line: "N passed, N failed".
set -u
cd "$(dirname "$0")/../../.." || exit 1
work=$(mktemp -d "${TMPDIR:-/tmp}/gpu_check.XXXXXX")
trap 'rm -rf "$work"' EXIT
. dev/test/system/checks.sh
[ -x plan ] || exit 1
export calls=$work/calls real_python
said=$work/said report=$work/out/report.txt
real_python=$(command -v python3)
context() { tail -n 3 "$said"; }

# ---- What stands in
mkdir -p "$work/bin" "$work/cuda/bin"
stand_in() { # FILE, whose text is read
    { echo '#!/bin/bash' && cat; } >"$work/$1"
    chmod +x "$work/$1"
}
stand_in bin/nvidia-smi <<'END'
case $* in
*compute_cap*) echo "${FAKE_CAPABILITY:-9.0}" ;;
*"-lms"*) echo "1000, 1500, 300.0, 30"; echo "51200, 1755, 650.5, 61"; exec sleep 100 ;;
*=memory.total*) echo "${FAKE_MEMORY:-143771}" ;;
*) echo "NVIDIA H200, 580.1, 143771 MiB, 1980 MHz, 345 MHz, 76.0 W, 30" ;;
esac
END
stand_in cuda/bin/nvcc <<'END'
case $* in
*--list-gpu-arch*) printf 'compute_%s\n' ${FAKE_ARCHS:-75 80 90 100} ;;
*--version*) echo "Cuda compilation tools, release ${FAKE_CUDA:-13.0}, V13.0.88" ;;
esac
END
stand_in bin/make <<'END'
echo "make $*" >>"$calls"
case "$*${FAKE_BROKEN:-}" in *preflight*yes) echo "error: no cublasLt.h"; exit 2 ;; esac
END
stand_in bin/mpirun <<'END'
echo "mpirun $*" >>"$calls"
case $*${FAKE_SLOW:-} in *-np*mpirun) exec sleep 100 ;; esac
[ "$1" = -np ] || exit 0
for ((rank = 0; rank < $2; rank++)); do OMPI_COMM_WORLD_RANK=$rank "${@:3}" || exit; done
END
stand_in bin/nm <<'END'
[ -n "${FAKE_NO_MPI:-}" ] || printf 'U MPI_Init_thread\nU ncclCommInitRank\n'
END
stand_in bin/compute-sanitizer <<'END'
echo "compute-sanitizer $*" >>"$calls"
END
stand_in bin/python3 <<'END'
case $* in
*"import torch"*) exit ${FAKE_TORCH:-0} ;;
*peer_pytorch.py*)
    echo "peer_pytorch $*" >>"$calls"
    case $* in *llama-7B*) echo "OutOfMemoryError: no" && exit 1 ;; esac
    echo '{"peer": "pytorch", "version": "2.9 compiled", "tokens_per_s": 250000.0, "peak_mb": 1.0}' ;;
*check_replicas.py*) echo "1 passed, 0 failed" ;;
*) exec "$real_python" "$@" ;;
esac
END
stand_in program <<'END'
name=$(basename "$(dirname "$0")")/$(basename "$0")
echo "$name ATTENTION=${ATTENTION:-} $*" >>"$calls"
[ -z "${NCCL_HOSTID:-}" ] || echo "host of $name: $NCCL_HOSTID" >>"$calls"
case " ${FAKE_FAILS:-} " in *" $name "*) echo "FAIL  this one"; exit 1 ;; esac
case " ${FAKE_KILLED:-} " in *" $name "*) kill -9 $$ ;; esac
case $name in
*/train_gpt)
    out="" loss=5.5
    case ${FAKE_LOGITS:-}$* in 1*"--micro-batch 64 "*) loss=5.6 ;; esac
    while [ $# -gt 0 ]; do [ "$1" != --out ] || out=$2; shift; done
    if [ -n "$out" ]; then
        mkdir -p "$out/step_1"
        echo "weights ${FAKE_WEIGHTS:+$out}" >"$out/step_1/weights"
        [ "${FAKE_LOSS:+$(basename "$out")}" != again ] || FAKE_OFF=1e-6
        awk -v off="${FAKE_OFF:-0}" -v swing="${FAKE_SWING:-0}" -v name="$name" 'BEGIN { for (i = 1; i <= 200; i++)
            printf "{\"loss\":%.6f,\"grad_norm\":2.0}\n", 5.5 - i / 80 + (name !~ /bf16/ ? 0 : \
                off + (i > 20) * (i % 2 ? 1 : -1) * swing) }' >"$out/log.jsonl"
    fi
    for rate in 1000 500000 100000 500000 500000 500000 900000 500000 500000 500000; do
        echo "step $((i += 1))/10 | loss $loss | norm 1.0 | lr 1e-4 | 131.1 ms | $rate tok/s | mfu 40 % | 0 s left"
    done ;;
*) echo "5 passed, 0 failed" ;;
esac
END
for program in $(dev/test/gpu_check.sh --list) ../bf16/test_gpt; do
    mkdir -p "$work/build/cuda/${program%/*}"
    ln -s "$work/program" "$work/build/cuda/$program"
done

# gpu ARGUMENTS...: what the script says goes to $said, its status to $status, its report to $report
gpu() {
    : >"$calls"
    rm -rf "$work/build/gpu_check" "$work/out"
    PATH="$work/bin:$PATH" BUILD="$work/build" MPIRUN=mpirun timeout 400 dev/test/gpu_check.sh "$@" "$work/out" \
        >"$said" 2>&1
    status=$?
}
count() { grep -c -- "$1" "${2:-$calls}"; } # PATTERN [FILE]
rows() { count "^$1" "$said"; }
# has FILE: it has each of the patterns that are read, a line each
has() {
    while read -r pattern; do check "it has $pattern" "grep -q -- '$pattern' $1"; done
}

# ---- All parts
gpu
is "all parts: status; what failed, timed out or was left out" "0 0" "$status $(rows 'FAIL\|^left out\|^timed out')"
is "built for Hopper, in two calls with the same flags" "2 1" \
    "$(count '^make.*=90a.*/cuda/') $(sed -n 's/^make.*DEVICE=\(.*90a\) .*/\1/p' "$calls" | sort -u | wc -l)"
missing=""
for precision in bf16 fp32; do
    for file in dev/test/cuda/cuda_*.cu; do
        test=$(basename "$file" .cu)
        case $precision$test in *bugs | *cuda_comm | fp*cuda_emulator | fp*cuda_hopper) continue ;; esac
        grep -q "^$precision/$test ATTENTION= *$" "$calls" || missing="$missing $precision/$test"
    done
done
is "kernels' tests that do not run, in either precision" "" "$missing"
while read -r times pattern; do is "calls like $pattern" "$times" "$(count "$pattern")"; done <<'END'
1 16/cuda_attention ATTENTION=mma *$
1 ^bf16/test_gpt ATTENTION=mma --compare
1 ^bf16/test_gpt ATTENTION=wgmma --compare .*gpt2.*llama.*pieces
5 ^bf16/test_gpt ATTENTION= --write
1 ^fp32/test_gpt ATTENTION= *$
4 ^bf16/train_gpt ATTENTION=mma .*--steps 200
2 train_gpt.*llama-7B --seq 2048 --vocab 32000 --micro-batch 2 --global-batch 8
0 ATTENTION= --[ts][pi].*--steps [0-9][0-9]
5 compute-sanitizer.*--tool memcheck
5 compute-sanitizer.*--tool racecheck
END
for model in gpt2-124M gpt2-350M gpt2-774M gpt2-1558M llama-1.1B llama-7B; do
    for by in "^bf16/train_gpt ATTENTION=mma" "^bf16/train_gpt.*=wgmma" peer_pytorch "^bf16/bench_gpu"; do
        missing+=$([ "$(count "$by .*--model $model")" = 1 ] || echo " $by $model")
    done
done
is "models without steps by a family, or by PyTorch, or whose kernels are not measured" "" "$missing"
has "$report" <<'END'
gpt2-124M mma *500000 tokens/s .*MFU 40.6 % causal 43.5 % full *50.0 GiB
 51200 MiB, SM clock up to 1755 MHz, power up to 650.5 W, temperature up to 61 C
gpt2-124M: 250000.0 tokens/s by PyTorch
^ok .*PyTorch, llama-7B *did not run
END
is "meshes by MPI and by NCCL, to which each rank has a host of its own" "9 4" \
    "$(rows 'ok .*, MPI\|ok .*, NCCL') $(grep '^host of bf16/train_gpt' "$calls" | sort -u | wc -l)"

# ---- Parts, failures, what is not there
gpu --only nonsense
is "a part that is not known is refused by name" "2 1" "$status $(count 'nonsense is not known' "$said")"
gpu --only preflight,kernels --built
is "--built: all runs, nothing is built, no other part" "0 2 0 0" \
    "$status $(rows 'ok .*cuda_rows') $(count '^make.*cuda/') $(count 'bench_gpu A\|test_gpt A\|mpirun')"
FAKE_CAPABILITY=8.0 FAKE_FAILS="fp32/cuda_rows" FAKE_KILLED=bf16/bench_gpu gpu --only kernels,bench
is "a program that fails is counted, and one that is killed has timed out; the others run" "1 1 1 2" \
    "$status $(rows 'FAIL *[0-9]* s') $(count ' 1 failed, 2 timed out' "$said") $(rows 'timed out .*bench')"
is "another GPU: its own architecture, one family" "1 0" "$(count 'GPU_ARCH=native') $(count 'ATTENTION=wgmma')"
FAKE_BROKEN=yes gpu
is "without cuBLASLt nothing else runs; the report says why" "1 0 1" \
    "$status $(count 'ATTENTION=') $(count 'left out.*all other parts' "$report")"
FAKE_FAILS=bf16/preflight_tma gpu --only preflight,bench
is "without TMA, a failure alone: attention by mma.sync" "1 1 0" \
    "$status $(count 'ATTENTION=mma') $(count 'ATTENTION=wgmma')"
# A curve above float32's, or beside it; a second run with another loss, or other weights. Noise, see
# check_precision.py, is 2^-8 x 0.02 x 2 = 1.6e-4.
for fault in FAKE_OFF=0.0005 FAKE_SWING=0.002 FAKE_LOSS=1 FAKE_WEIGHTS=1; do
    export "${fault?}"
    gpu --only model
    unset "${fault%=*}"
    is "$fault: a failure by both families, and no other" "1 2 2" \
        "$status $(rows 'FAIL *[0-9]* s') $(count '^FAIL  [^ ]' "$report")"
done
FAKE_LOGITS=1 gpu --only compare
is "another loss where logits are many: status, failures" "1 1" "$status $(rows 'FAIL *0 s  3.3 G logits')"
FAKE_MEMORY=81559 FAKE_TORCH=1 gpu --only models --models "gpt2-1558M llama-7B"
is "80 GB, no PyTorch: a smaller micro-batch; left out are what does not fit, and PyTorch" "0 2 1 1" \
    "$status $(count 'gpt2-1558M .*--micro-batch 16 --global-batch 32') $(rows 'left out.*llama-7B.*no micro-batch') \
$(rows 'left out.*PyTorch')"
FAKE_NO_MPI=yes gpu --only meshes
is "built without MPI: no mpirun" "0 1 0" "$status $(rows 'left out.*MPI') $(count mpirun)"

SECONDS_LIMIT=22 FAKE_SLOW=mpirun gpu --only meshes
is "what hangs is ended in the time that is left; there is none for the rest" "1 1 1" \
    "$status $(rows 'timed out.*messages, MPI *of [12]*[0-9] s') $(rows 'left out.*meshes, MPI.*--only meshes')"

# ---- What make finds: the CUDA Toolkit's libraries, then those of pip's wheels, whose names have versions
site=$work/site/nvidia
mkdir -p "$site"
touch "$site/__init__.py" # hides the wheels of this machine
found() { # VARIABLE...: what make says with these; nothing of this machine's is found
    PYTHONPATH=$work/site MAKEFLAGS="" make report DEVICE=cuda MPI=no BUILD="$work/make" \
        NVCC="$work/cuda/bin/nvcc" system_places= gpu_name= "$@" >"$said" 2>&1
}
wheel() { # FOLDER HEADER LIBRARY
    mkdir -p "$site/$1/include" "$site/$1/lib"
    touch "$site/$1/include/$2" "$site/$1/lib/$3"
}
wheel cublas cublasLt.h libcublasLt.so.12
check "CUDA 13 without a cuBLASLt of its own" "! found && grep -q 'libcublasLt.so.13' $said"
wheel cu13 cublasLt.h libcublasLt.so.13
wheel nccl nccl.h libnccl.so.2
found -n train_gpt MPI_FLAGS=-DUSE_MPI
has "$said" <<END
cuBLASLt *$site/cu13/lib/libcublasLt.so.13
code=sm_80 .*code=sm_90a .*code=sm_100
-isystem $site/cu13/.*USE_NCCL.* -L$site/cu13/lib/ -l:libcublasLt.so.13 -Xlinker -rpath.* $site/cu13
END
FAKE_CUDA=12.4 FAKE_ARCHS="50 80 86 90 90a" found
has "$said" <<END
cuBLASLt *$site/cublas/lib/libcublasLt.so.12
NCCL *$site/nccl/lib/libnccl.so.2
GPUs (sm 80 90),
END
mkdir -p "$work/cuda/include" "$work/cuda/targets/x86_64-linux/lib"
touch "$work/cuda/include/cublasLt.h" "$work/cuda/targets/x86_64-linux/lib/libcublasLt.so.13"
found
has "$said" <<<"cuBLASLt *$work/cuda/targets/x86_64-linux/lib/libcublasLt.so.13"
finish
