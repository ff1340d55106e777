#!/bin/bash
# nvcc makes every program of `dev/test/gpu_check.sh --list` for sm_80, sm_90a and sm_100 without a warning, and links
# it. The trainer says in one line, and with exit status 1, that there is no GPU, where there is none. Then its machine
# code is checked (check_assembly.py, where cuobjdump is). Needs no GPU. Ten minutes on two cores.
set -u
BUILD=${BUILD:-build}
. dev/test/system/checks.sh

# make_it TARGET; compile PROGRAM: prints a line
make_it() {
    make --no-print-directory -s DEVICE=cuda GPU_ARCH="80 90 100" BUILD="$BUILD/nvcc" \
        NVCC_FLAGS="-Werror all-warnings -Xcompiler -Werror" "$BUILD/nvcc/$1" 2>&1
}
compile() {
    if said=$(make_it "cuda/$1") && ! grep -q '[^ ]' <<<"$said"; then echo "ok    nvcc: $1, without a word"
    else echo "FAIL  nvcc: $1: $(head -n 5 <<<"$said")"; fi
}
export -f make_it compile
export BUILD
mkdir -p "$BUILD/log"
programs=$(dev/test/gpu_check.sh --list)
make_it flags
# shellcheck disable=SC2016  # of the inner shell
xargs -P 2 -n 1 bash -c 'compile "$0"' <<<"$programs" | tee "$BUILD/log/nvcc"
passed=$(grep -c '^ok' "$BUILD/log/nvcc")
failed=$(grep -c '^FAIL' "$BUILD/log/nvcc")
if [ "$(grep -c . <<<"$programs")" != $((passed + failed)) ] || [ "$passed" -lt 20 ]; then
    bad "$passed programs were compiled of: $programs"
fi
for train in "$BUILD"/nvcc/cuda/{bf16,fp32}/train_gpt; do
    if nvidia-smi -L >/dev/null 2>&1; then continue; fi
    said=$("$train" --steps 1 2>&1)
    is "without a GPU" "1, 1 line of no CUDA device" \
        "$?, $(wc -l <<<"$said") line of $(grep -o "no CUDA device" <<<"$said")"
    check "--dry-run needs none" "$train --dry-run >$BUILD/log/out 2>&1"
done
if dev/test/system/check_assembly.py "$BUILD/nvcc/cuda/bf16/train_gpt" >"$BUILD/log/assembly"
then
    if grep -q "not checked" "$BUILD/log/assembly"; then cat "$BUILD/log/assembly"
    else ok "machine code: $(tail -n 1 "$BUILD/log/assembly")"; fi
else bad "machine code: $(tail -n 5 "$BUILD/log/assembly")"; fi
finish
