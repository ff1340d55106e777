#!/bin/bash
# nvcc makes every program of `dev/test/gpu_check.sh --list` without a warning, and links it: the trainer and the test
# of attention in bf16 for sm_80, sm_90a and sm_100, all others for sm_90a alone, which is a third of the time. What it
# has made says in one line, and with exit status 1, that there is no GPU, where there is none. Then what its machine
# code has to be like (check_assembly.py, where cuobjdump is). Needs no GPU.
set -u
BUILD=${BUILD:-build}
passed=0 failed=0
ok() { passed=$((passed + 1)) && echo "ok    $*"; }
bad() { failed=$((failed + 1)) && echo "FAIL  $*"; }

# compile FOLDER ARCHITECTURES PROGRAM...: a line for each, to a file
compile() {
    local folder=$1 archs=$2 program said
    shift 2
    for program in "$@"; do
        if said=$(make --no-print-directory -s DEVICE=cuda GPU_ARCH="$archs" BUILD="$BUILD/$folder" \
            NVCC_FLAGS="-Werror all-warnings -Xcompiler -Werror" "$BUILD/$folder/cuda/$program" 2>&1) &&
            ! grep -q '[^ ]' <<<"$said"
        then echo "ok    nvcc: $program (sm $archs), without a word"
        else echo "FAIL  nvcc: $program (sm $archs): $(head -n 5 <<<"$said")"; fi
    done >"$BUILD/log/$folder"
}
mkdir -p "$BUILD/log"
several="bf16/train_gpt bf16/cuda_attention"
programs=$(dev/test/gpu_check.sh --list)
# shellcheck disable=SC2086,SC2046  # lists of words
{
    compile nvcc-all "80 90 100" $several &
    compile nvcc 90 $(grep -vxF "$(tr ' ' '\n' <<<"$several")" <<<"$programs") &
    wait
}
cat "$BUILD/log/nvcc-all" "$BUILD/log/nvcc"
passed=$(cat "$BUILD/log/nvcc-all" "$BUILD/log/nvcc" | grep -c '^ok')
failed=$(cat "$BUILD/log/nvcc-all" "$BUILD/log/nvcc" | grep -c '^FAIL')
if [ "$(grep -c . <<<"$programs")" != $((passed + failed)) ] || [ "$passed" -lt 20 ]; then
    bad "$passed programs were compiled of: $programs"
fi
for train in "$BUILD/nvcc-all/cuda/bf16/train_gpt" "$BUILD/nvcc/cuda/fp32/train_gpt"; do
    if nvidia-smi -L >/dev/null 2>&1; then continue; fi
    "$train" --steps 1 >"$BUILD/log/out" 2>"$BUILD/log/err"
    status=$?
    if [ $status = 1 ] && [ ! -s "$BUILD/log/out" ] && [ "$(wc -l <"$BUILD/log/err")" = 1 ] &&
        grep -q "no CUDA device" "$BUILD/log/err"; then ok "without a GPU: $(cat "$BUILD/log/err")"
    else bad "without a GPU: exit status $status, $(cat "$BUILD/log/out" "$BUILD/log/err" | head -n 5)"; fi
    if "$train" --dry-run >"$BUILD/log/out" 2>&1; then ok "--dry-run needs none"; else
        bad "--dry-run: $(cat "$BUILD/log/out")"; fi
done
if dev/test/system/check_assembly.py "$BUILD/nvcc-all/cuda/bf16/train_gpt" >"$BUILD/log/assembly"
then
    if grep -q "not checked" "$BUILD/log/assembly"; then cat "$BUILD/log/assembly"
    else ok "machine code: $(tail -n 1 "$BUILD/log/assembly")"; fi
else bad "machine code: $(tail -n 5 "$BUILD/log/assembly")"; fi
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
