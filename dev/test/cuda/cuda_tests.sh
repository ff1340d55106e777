#!/bin/bash
# The CUDA kernels and the model on the emulator, for machines without a GPU. LONG=1: every precision, AddressSanitizer,
# UBSan and ThreadSanitizer (short forms), communication of device memory, the whole trainer, and nvcc. Two at a time,
# the long ones first. Called by dev/test/run.sh; GPU_TESTS: the programs, in $BUILD; NVCC: empty where there is none.
set -u
log=$BUILD/log/cuda
rm -rf "$log"
mkdir -p "$log"
references=dev/test/reference
export BUILD log ASAN_OPTIONS=detect_leaks=0 CUDA_ON_CPU_THREADS=1 OMP_NUM_THREADS=1

# job LABEL COMMAND...: its output to a file, its line to stdout
job() {
    file=$log/$(echo "$1" | tr ' /' '__')
    label=$1 start=$SECONDS
    shift
    timeout -k 5 1800 "$@" >"$file" 2>&1 </dev/null
    status=$?
    last=$(grep -a '^[0-9][0-9]* passed, [0-9][0-9]* failed$' "$file" | tail -n 1)
    if [ $status != 0 ] || [ -z "$last" ]; then
        grep -a '^FAIL' "$file" | head -n 10
        [ -n "$last" ] || tail -n 20 "$file"
    fi
    printf '%-34s %-26s %4d s\n' "$label" "${last:-no result}" $((SECONDS - start))
    p=$(expr "${last:-0 }" : '\([0-9]*\) ') f=$(expr "${last:-x, 0 }" : '.*, \([0-9]*\) ')
    [ $status = 0 ] || [ "$f" != 0 ] || f=1
    [ "$p" != 0 ] || [ "$f" != 0 ] || f=1 # no test was run
    echo "$p $f" >"$file.count"
}
export -f job

case " $GPU_TESTS " in
*/compare\ *)
    for model in gpt2 llama; do "$BUILD/bf16/test_gpt" --write "$log/$model.reference" $model || exit; done ;;
esac
{
    if [ -n "${LONG:-}" ]; then
        [ -z "${MPIRUN-mpirun}" ] || echo "device memory between ranks:dev/test/cuda/cuda_comm.sh"
        echo "emulated trainer:dev/test/system/test_emulated.sh"
        [ -z "${NVCC:-}" ] || echo "nvcc:dev/test/system/test_nvcc.sh"
    fi
    for test in $GPU_TESTS; do
        case $test in
        tsan/*) echo "$test:env CUDA_ON_CPU_THREADS=2 $BUILD/$test --short" ;; # blocks race on two cores
        asan/*) echo "$test:$BUILD/$test --short" ;;
        */compare)
            echo "$test:$BUILD/$test --compare $references/gpt2_tied.safetensors"
            echo "$test, the CPU's:$BUILD/$test --compare $log/gpt2.reference $log/llama.reference"
            echo "$test, wgmma:env ATTENTION=wgmma $BUILD/$test --compare $log/gpt2.reference $log/llama.reference"
            ;;
        *) echo "$test:$BUILD/$test" ;;
        esac
        case $test in
        */fp32/*) ;; # has no kernels by wgmma
        tsan/*/cuda_attention) echo "$test, wgmma:env ATTENTION=wgmma CUDA_ON_CPU_THREADS=2 $BUILD/$test --short" ;;
        asan/*/cuda_attention) echo "$test, wgmma:env ATTENTION=wgmma $BUILD/$test --short" ;;
        */cuda_attention) echo "$test, wgmma:env ATTENTION=wgmma $BUILD/$test" ;;
        esac
    done
} | xargs -P 2 -d '\n' -n 1 bash -c 'job "${0%%:*}" ${0#*:}'
cat "$log"/*.count | awk '{ p += $1; f += $2 } END { print p " passed, " f " failed"; exit f > 0 || p == 0 }'
