#!/bin/bash
# The sources are in the common subset of C11 and C++17: no compiler that is here may have a warning about them. LONG=1:
# of all tests and benchmarks also without OpenMP; else of what users run, and of the tests of kernels. Then products in
# bf16 as on other processors than this one, and the trainer under valgrind, which knows no AVX-512.
set -u
. dev/test/system/checks.sh
try() { if said=$("$@" 2>&1); then ok "$*"; else bad "$*: $said"; fi; }
warnings="-Wall -Wextra -Werror -fsyntax-only ${MPI_FLAGS:-}"
for file in train_gpt.cu test_gpt.c dev/test/*/*.c dev/bench/*.c dev/plot/*.c planner/*.c dev/data/*.c; do
    # shellcheck disable=SC2086  # lists of words
    for compiler in gcc clang; do
        command -v $compiler >/dev/null || continue
        try $compiler -x c -std=gnu11 $warnings -fopenmp "$file"
        case $file${LONG:+long} in
        train_gpt.cu | planner/* | dev/data/* | dev/test/unit/test_kernels.c | *long)
            try $compiler -x c -std=gnu11 $warnings -Wno-unknown-pragmas "$file" ;;
        esac
    done
    # shellcheck disable=SC2086
    if command -v g++ >/dev/null; then try g++ -x c++ -std=c++17 $warnings -fopenmp "$file"; fi
done
for flags in "-march=native" "-march=native -DATTENTION_FLOATS" "-march=x86-64-v3 -DATTENTION_FLOATS" \
    "-march=x86-64-v3 -DATTENTION_WORDS"; do
    [ "$(uname -m)" = x86_64 ] || continue
    for test in attention matmul kernels_bits; do
        # shellcheck disable=SC2086
        try gcc -std=gnu11 -O1 $flags -fno-math-errno -fopenmp -DPRECISION_BF16 -DNO_AMX "dev/test/unit/test_$test.c" \
            -o "$BUILD/log/other" -lm -ldl
        try "$BUILD/log/other"
    done
done
if command -v valgrind >/dev/null && [ "$(uname -m)" = x86_64 ]; then
    try gcc -x c -std=gnu11 -O1 -march=x86-64-v3 -fopenmp train_gpt.cu -o "$BUILD/log/train_gpt" -lm -ldl
    try valgrind --log-file="$BUILD/log/valgrind" "$BUILD/log/train_gpt" --layers 1 --hidden 16 --heads 2 --seq 16 \
        --steps 2
    check "it stays there, to its end" "grep 'ERROR SUMMARY: 0 errors' $BUILD/log/valgrind"
    rm -f "$BUILD/log/train_gpt"
else echo "left out: the trainer under valgrind (apt-get install valgrind)"; fi
# ARM, where the compiler has NEON: the trainer prints x86's digits, and the kernels' tests pass.
if command -v aarch64-linux-gnu-gcc >/dev/null && command -v qemu-aarch64 >/dev/null; then
    arm() { timeout 600 qemu-aarch64 -L /usr/aarch64-linux-gnu "$@"; }
    build_arm() { # PROGRAM SOURCE
        try aarch64-linux-gnu-gcc -x c -std=gnu11 -O2 -march=armv8-a -fno-math-errno -fopenmp "$2" -o "$1" -lm -ldl
    }
    digits() { grep -o '^step .* norm [0-9.]*'; }
    tiny="--data docs/ladder/1_one_process.c --layers 2 --hidden 32 --heads 2 --seq 32 --steps 8 --sample-every 0"
    build_arm "$BUILD/log/arm" train_gpt.cu
    # shellcheck disable=SC2086
    is "ARM's losses and norms are x86's" "$(./train_gpt $tiny | digits)" "$(arm "$BUILD/log/arm" $tiny | digits)"
    for test in fast_math kernels kernels_bits attention matmul gpt; do
        source=dev/test/unit/test_$test.c
        [ -e "$source" ] || source=test_$test.c
        build_arm "$BUILD/log/arm" "$source"
        try arm "$BUILD/log/arm"
    done
    try aarch64-linux-gnu-gcc -O2 -march=armv8-a docs/ladder/1_one_process.c -o "$BUILD/log/arm" -lm
    try gcc -O2 docs/ladder/1_one_process.c -o "$BUILD/log/other" -lm
    "$BUILD/log/other" >"$BUILD/log/rung.x86"
    arm "$BUILD/log/arm" >"$BUILD/log/rung.arm" # three minutes
    near='import re, sys; sys.dont_write_bytecode = True; sys.path.append("docs/ladder"); from ladder import bound
x, y = ([float(n) for n in re.findall(r"loss (\S+)", open(f).read())] for f in sys.argv[1:])
off = max(abs(a - b) / bound(i + 1, a) for i, (a, b) in enumerate(zip(x, y)))
print(f"{off:.3f} of the bound of ladder.py"); sys.exit(len(x) != len(y) or off > 1)'
    verify "rung 1's nearly, as ARM fuses multiply-adds:" python3 -c "$near" "$BUILD"/log/rung.{x86,arm}
    rm -f "$BUILD/log/arm"
else echo "left out: ARM (apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user)"; fi
finish
