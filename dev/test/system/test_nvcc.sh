#!/bin/sh
# nvcc makes code of the trainer and all kernels for sm_90a (LONG=1: for sm_80 and sm_100, too), and in fp32 for sm_80,
# without a warning, and links it; and what it has made says in one line, and with exit status 1, that there is no GPU,
# where there is none. Then what its machine code has to be like (check_assembly.py, where cuobjdump is). Needs no GPU.
set -u
BUILD=${BUILD:-build}
passed=0 failed=0
ok() { passed=$((passed + 1)) && echo "ok    $*"; }
bad() { failed=$((failed + 1)) && echo "FAIL  $*"; }

# compile PRECISION ARCHITECTURES: in a folder of its own, its output to a file
compile() {
    make --no-print-directory -s DEVICE=cuda GPU_ARCH="$2" NVCC_FLAGS="-Werror all-warnings -Xcompiler -Werror" \
        BUILD="$BUILD/nvcc-$1" "$BUILD/nvcc-$1/cuda/$1/train_gpt" >"$BUILD/log/nvcc-$1" 2>&1
    echo $? >"$BUILD/log/nvcc-$1.status"
}
mkdir -p "$BUILD/log"
compile bf16 "${LONG:+80 }90${LONG:+ 100}" &
compile fp32 "80"
wait
for precision in bf16 fp32; do
    train=$BUILD/nvcc-$precision/cuda/$precision/train_gpt
    if [ "$(cat "$BUILD/log/nvcc-$precision.status")" = 0 ] && ! grep -v '^ *$' "$BUILD/log/nvcc-$precision" | grep -q .
    then ok "nvcc: the trainer in $precision, without a word"
    else bad "nvcc: the trainer in $precision: $(head -n 5 "$BUILD/log/nvcc-$precision")"; fi
    if nvidia-smi -L >/dev/null 2>&1; then continue; fi
    "$train" --steps 1 >"$BUILD/log/out" 2>"$BUILD/log/err"
    status=$?
    if [ $status = 1 ] && [ ! -s "$BUILD/log/out" ] && [ "$(wc -l <"$BUILD/log/err")" = 1 ] &&
        grep -q "no CUDA device" "$BUILD/log/err"; then ok "without a GPU: $(cat "$BUILD/log/err")"
    else bad "without a GPU: exit status $status, $(cat "$BUILD/log/out" "$BUILD/log/err" | head -n 5)"; fi
    if "$train" --dry-run >"$BUILD/log/out" 2>&1; then ok "--dry-run needs none"; else
        bad "--dry-run: $(cat "$BUILD/log/out")"; fi
done
if dev/test/system/check_assembly.py "$BUILD/nvcc-bf16/cuda/bf16/train_gpt" >"$BUILD/log/assembly"
then
    if grep -q "not checked" "$BUILD/log/assembly"; then cat "$BUILD/log/assembly"
    else ok "machine code: $(tail -n 1 "$BUILD/log/assembly")"; fi
else bad "machine code: $(tail -n 5 "$BUILD/log/assembly")"; fi
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
