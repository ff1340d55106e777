#!/bin/bash
# test_gpu_check.sh [all|parts|ends|libraries]: does dev/test/gpu_check.sh do what it says, and does make find what CUDA
# needs? Without a GPU: programs of the same names stand in for nvidia-smi, nvcc, make, mpirun, nm, compute-sanitizer,
# PyTorch and for all that make would have built; they note how they were called, and say what the real ones would.
# Needs ./plan.
set -u
cd "$(dirname "$0")/../../.." || exit 1
work=$(mktemp -d "${TMPDIR:-/tmp}/gpu_check.XXXXXX")
trap 'rm -rf "$work"' EXIT
. dev/test/system/checks.sh
# expect WHAT COMMAND...: it has to succeed
expect() { if "${@:2}" >/dev/null 2>&1; then ok "$1"; else bad "$1"; fi; }
has() { grep -q -- "$1" "$2"; }
times() { [ "$(grep -c -- "$1" "$2")" = "$3" ]; }

# ---- What stands in
export calls=$work/calls real_python
real_python=$(command -v python3)
mkdir -p "$work/bin" "$work/cuda/bin"
cat >"$work/bin/nvidia-smi" <<'END'
#!/bin/bash
case $* in
*compute_cap*) echo "${FAKE_CAPABILITY:-9.0}" ;;
*"-lms"*) echo "1000, 1500, 300.0, 30"; echo "51200, 1755, 650.5, 61"; exec sleep 100 ;;
*=memory.total*) echo "${FAKE_MEMORY:-143771}" ;;
*) echo "NVIDIA H200, 580.1, 143771 MiB, 1980 MHz, 345 MHz, 76.0 W, 30" ;;
esac
END
cat >"$work/cuda/bin/nvcc" <<'END'
#!/bin/bash
case $* in
*--list-gpu-arch*) printf 'compute_%s\n' ${FAKE_ARCHS:-75 80 90 100} ;;
*--version*) echo "Cuda compilation tools, release ${FAKE_CUDA:-13.0}, V13.0.88" ;;
esac
END
cat >"$work/bin/make" <<'END'
#!/bin/bash
echo "make $*" >>"$calls"
case "$*${FAKE_BROKEN:-}" in *preflight*yes) echo "error: no cublasLt.h"; exit 2 ;; esac
END
cat >"$work/bin/mpirun" <<'END'
#!/bin/bash
echo "mpirun $*" >>"$calls"
case $*${FAKE_SLOW:-} in *-np*mpirun) exec sleep 100 ;; esac
[ "$1" = -np ] || exit 0
for ((rank = 0; rank < $2; rank++)); do OMPI_COMM_WORLD_RANK=$rank "${@:3}" || exit; done
END
cat >"$work/bin/nm" <<'END'
#!/bin/bash
printf 'U MPI_Init_thread\nU ncclCommInitRank\n'
END
cat >"$work/bin/compute-sanitizer" <<'END'
#!/bin/bash
echo "compute-sanitizer $*" >>"$calls"
echo "ERROR SUMMARY: 0 errors"
END
cat >"$work/bin/python3" <<'END'
#!/bin/bash
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
cat >"$work/program" <<'END'
#!/bin/bash
name=$(basename "$(dirname "$0")")/$(basename "$0")
echo "$name ATTENTION=${ATTENTION:-} $*" >>"$calls"
[ -z "${NCCL_HOSTID:-}" ] || echo "host of $name: $NCCL_HOSTID" >>"$calls"
case " ${FAKE_FAILS:-} " in *" $name "*) seq 50; echo "FAIL  this one"; exit 1 ;; esac
case " ${FAKE_SLOW:-} " in *" $name "*) echo "so far"; exec -a "$0" sleep 100 ;; esac
case " ${FAKE_KILLED:-} " in *" $name "*) kill -9 $$ ;; esac
case $name in
*/train_gpt)
    out=""
    while [ $# -gt 0 ]; do [ "$1" != --out ] || out=$2; shift; done
    if [ -n "$out" ]; then
        mkdir -p "$out/step_1"
        echo "weights ${FAKE_WEIGHTS:+$out}" >"$out/step_1/weights"
        [ "${FAKE_LOSS:+$(basename "$out")}" != bf16-again ] || FAKE_OFF=1e-6
        awk -v off="${FAKE_OFF:-0}" -v swing="${FAKE_SWING:-0}" -v name="$name" 'BEGIN { for (i = 1; i <= 200; i++)
            printf "{\"loss\":%.6f,\"grad_norm\":2.0}\n", 5.5 - i / 80 + (name !~ /bf16/ ? 0 : \
                off + (i > 20) * (i % 2 ? 1 : -1) * swing) }' >"$out/log.jsonl"
    fi
    for i in 1 2 3 4 5 6 7 8 9 10; do
        case $i in 1) rate=1000 ;; 3) rate=100000 ;; 7) rate=900000 ;; *) rate=500000 ;; esac
        echo "step $i/10 | loss 5.5 | norm 1.0 | lr 1e-4 | 131.1 ms | $rate tok/s | mfu 40 % | 0 s left"
    done ;;
*/bench_gpu) echo "4 lines in 1.0 s" ;;
*/preflight_cublaslt) echo "versions: CUDA 13000, cuBLASLt 130100"; echo "1 passed, 0 failed" ;;
*) echo "5 passed, 0 failed" ;;
esac
END
chmod +x "$work"/bin/* "$work/cuda/bin/nvcc" "$work/program"
for program in $(dev/test/gpu_check.sh --list); do
    mkdir -p "$work/build/cuda/${program%/*}"
    ln -s "$work/program" "$work/build/cuda/$program"
done
[ -x plan ] || exit 1

# check NAME ARGUMENTS...: the script's output to $work/NAME, its status to $status, its report to $work/NAME.out
check() {
    local name=$1
    shift
    : >"$calls"
    rm -rf "$work/build/gpu_check"
    PATH="$work/bin:$PATH" BUILD="$work/build" MPIRUN=mpirun timeout 120 dev/test/gpu_check.sh "$@" \
        "$work/$name.out" >"$work/$name" 2>&1
    status=$?
    report=$work/$name.out/report.txt
}
rows() { grep -c "^$1" "$work/$2"; }

# ---- All parts
test_all() {
    check all
    expect "all parts: exit status $status: $(tail -n 1 "$work/all")" \
        [ "$status $(rows 'FAIL\|^left out\|^timed out' all)" = "0 0" ]
    expect "in their order: 124M comes before the other models, and before meshes" \
        [ "$(sed -n 's/^==== \([a-z]*\).*/\1/p' "$report" | tr '\n' ' ')" = \
        "preflight kernels model bench train models meshes sanitizer " ]
    expect "the preflight is built first, then all else at once, for Hopper: sm_90a" \
        [ "$(grep '^make.*=90a.*/cuda/' "$calls" | sed 's/.*train_gpt/all/; s/.*_tma$/first/' | tr '\n' ' ')" = \
        "first all " ]
    for file in dev/test/cuda/cuda_*.cu; do
        test=$(basename "$file" .cu)
        case $test in *bugs | *cuda_comm) continue ;; esac
        expect "a kernel's test: $test" has "^bf16/$test ATTENTION= *$" "$calls"
    done
    expect "the whole model in fp32 and, by both families, in bf16" \
        [ "$(grep '^.p../test_gpt\|^bf16/test_gpt' "$calls" | sort | tr -d '\n')" = \
        "bf16/test_gpt ATTENTION=mma bf16/test_gpt ATTENTION=wgmma fp32/test_gpt ATTENTION= " ]
    expect "in bf16 three seeds, and one of them again" times '^bf16/train_gpt ATTENTION=mma .*--steps 200' "$calls" 4
    for model in gpt2-124M gpt2-350M gpt2-774M gpt2-1558M llama-1.1B llama-7B; do
        expect "steps of $model" times "^bf16/train_gpt ATTENTION=wgmma .*--model $model" "$calls" 1
        expect "and PyTorch's" times "peer_pytorch .*--model $model" "$calls" 1
        expect "and its kernels" has "^bf16/bench_gpu .*--model $model" "$calls"
    done
    expect "in the micro-batches that fit: 2 of 8 sequences of 7B" has \
        'train_gpt.*llama-7B --seq 2048 --vocab 32000 --micro-batch 2 --global-batch 8' "$calls"
    expect "the median of the rates, and MFU" has \
        'gpt2-124M mma *500000 tokens/s .*MFU 40.6 % causal 43.5 % full *50.0 GiB' "$report"
    expect "memory, clock, power and temperature meanwhile: the largest" \
        has ' 51200 MiB, SM clock up to 1755 MHz, power up to 650.5 W, temperature up to 61 C' "$report"
    expect "where PyTorch does not run, that is no failure" has '^ok .*PyTorch, llama-7B *did not run' "$work/all"
    expect "commit, card and driver by every part" times 'commit .*sm_90a, NVIDIA H200, 580.1' "$report" 8
    expect "meshes by MPI and by NCCL" [ "$(rows 'ok .*, MPI\|ok .*, NCCL' all)" = 8 ]
    expect "each rank has a host of its own to NCCL" \
        [ "$(grep '^host of bf16/train_gpt' "$calls" | sort -u | wc -l)" = 4 ]
    for tool in memcheck racecheck; do
        expect "compute-sanitizer's $tool" times "compute-sanitizer.*--tool $tool" "$calls" 5
    done
}

# ---- Parts, failures, what is not there
test_parts() {
    check built --only preflight,kernels --built
    expect "--only, --built: these parts run, nothing is built" [ "$status $(rows 'ok .*cuda_rows' built) $(grep -c \
        '^make.*cuda/\|bench_gpu A\|mpirun' "$calls")" = "0 2 0" ]
    FAKE_CAPABILITY=8.0 check ampere --only bench
    expect "another GPU: its own architecture, one family" \
        [ "$(grep -c 'GPU_ARCH=native' "$calls")$(grep -c 'ATTENTION=wgmma' "$calls")" = 10 ]
    FAKE_FAILS="fp32/cuda_rows" FAKE_KILLED=bf16/bench_gpu check broken --only kernels,bench
    expect "a program fails: a row, the others run" [ "$status$(rows 'FAIL *[0-9]* s' broken)" = 11 ]
    expect "and is counted; 137 is a time-out" has ' 1 failed, 3 timed out' "$work/broken"
    FAKE_BROKEN=yes check nothing
    expect "without cuBLASLt nothing else runs" [ "$status$(grep -c 'ATTENTION=' "$calls")" = 10 ]
    # noise, see check_precision.py, is 2^-8 x 0.02 x 2 = 1.6e-4
    for fault in FAKE_OFF=0.0005 FAKE_SWING=0.002 FAKE_LOSS=1 FAKE_WEIGHTS=1; do
        export "${fault?}"
        check curve --only model
        unset "${fault%=*}"
        expect "$fault, a wrong curve or another second run: a failure by both families" \
            [ "$status $(rows 'FAIL *[0-9]* s' curve) $(grep -c '^FAIL  bf16' "$report")" = "1 2 2" ]
    done
    check unknown --only models --models "gpt5"
    expect "an unknown model fails" [ $status = 1 ]
    FAKE_MEMORY=81559 FAKE_TORCH=1 check small --only models --models "gpt2-1558M llama-7B"
    expect "80 GB: a smaller micro-batch" has 'gpt2-1558M .*--micro-batch 16 --global-batch 32' "$calls"
    expect "and what does not fit is left out" [ "$status$(rows 'left out.*llama-7B.*no micro-batch fits' small)" = 01 ]
}

# ---- What takes too long, signals, wrong options
test_ends() {
    SECONDS_LIMIT=22 FAKE_SLOW=mpirun check slow --only meshes
    expect "what hangs is ended in the time that is left" \
        [ "$status$(rows 'timed out.*messages, MPI *of [12]*[0-9] s' slow)" = 11 ]
    expect "and that there is no time for the rest is said" has 'left out.*meshes, MPI.*--only meshes' "$work/slow"
    for wrong in "--only nothing" "--only" "--what" "a b"; do
        # shellcheck disable=SC2086  # words
        PATH="$work/bin:$PATH" BUILD="$work/build" dev/test/gpu_check.sh $wrong >"$work/wrong" 2>&1
        expect "$wrong: refused" [ "$?$(wc -l <"$work/wrong")" = 21 ]
    done
}

# ---- What make finds: the CUDA Toolkit's libraries, then those of pip's wheels, whose names have versions
test_libraries() {
    site=$work/site/nvidia
    mkdir -p "$site"
    touch "$site/__init__.py" # hides the wheels of this machine
    found() { # VARIABLE...: what make says with these; nothing of this machine's is found
        PYTHONPATH=$work/site MAKEFLAGS="" make report DEVICE=cuda MPI=no BUILD="$work/make" \
            NVCC="$work/cuda/bin/nvcc" system_places= gpu_name= "$@" >"$work/found" 2>&1
    }
    wheel() { # FOLDER HEADER LIBRARY
        mkdir -p "$site/$1/include" "$site/$1/lib"
        touch "$site/$1/include/$2" "$site/$1/lib/$3"
    }
    wheel cublas cublasLt.h libcublasLt.so.12
    ! found
    expect "CUDA 13 without a cuBLASLt of its own: a line says where it was sought" \
        has 'needs cublasLt.h and libcublasLt.so.13.* /.*/cuda' "$work/found"
    wheel cu13 cublasLt.h libcublasLt.so.13
    found
    expect "a wheel of CUDA 13" has "cuBLASLt *$site/cu13/lib/libcublasLt.so.13" "$work/found"
    expect "no NCCL" has 'NCCL *not found' "$work/found"
    wheel nccl nccl.h libnccl.so.2
    FAKE_CUDA=12.4 FAKE_ARCHS="50 80 86 90 90a" found
    expect "a wheel of CUDA 12" has "cuBLASLt *$site/cublas/lib/libcublasLt.so.12" "$work/found"
    expect "and of NCCL" has "NCCL *$site/nccl/lib/libnccl.so.2" "$work/found"
    expect "code for what nvcc can make: 12.4 has no sm_100" has 'GPUs (sm 80 90),' "$work/found"
    found -n train_gpt MPI_FLAGS=-DUSE_MPI
    expect "CUDA 13 has" has 'code=sm_80 .*code=sm_90a .*code=sm_100' "$work/found"
    expect "headers, libraries and the loader's path of the wheels" \
        has "-isystem $site/cu13/.*USE_NCCL.* -L$site/cu13/lib/ -l:libcublasLt.so.13 -Xlinker -rpath.* $site/cu13" \
        "$work/found"
    mkdir -p "$work/cuda/include" "$work/cuda/targets/x86_64-linux/lib"
    touch "$work/cuda/include/cublasLt.h" "$work/cuda/targets/x86_64-linux/lib/libcublasLt.so.13"
    found
    expect "the toolkit goes first" has "cuBLASLt *$work/cuda/targets/x86_64-linux/lib/libcublasLt.so.13" "$work/found"
}

[ $# -gt 0 ] || set -- all parts ends libraries
for section in "$@"; do "test_$section"; done
finish
