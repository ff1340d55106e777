#!/bin/bash
# The sources are in the common subset of C11 and C++17: no compiler that is here may have a warning about them. LONG=1:
# of all tests and benchmarks also without OpenMP; else of what users run, and of the tests of kernels. Then the trainer
# under valgrind, which knows no AVX-512.
set -u
. dev/test/system/checks.sh
try() {
    if "$@" >"$BUILD/log/warnings" 2>&1; then ok "$*"; else bad "$*" && cat "$BUILD/log/warnings"; fi
}
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
if command -v valgrind >/dev/null && [ "$(uname -m)" = x86_64 ]; then
    try gcc -x c -std=gnu11 -O1 -march=x86-64-v3 -fopenmp train_gpt.cu -o "$BUILD/log/train_gpt" -lm -ldl
    try valgrind --log-file="$BUILD/log/valgrind" "$BUILD/log/train_gpt" --layers 1 --hidden 16 --heads 2 --seq 16 \
        --steps 2
    check "it stays there, to its end" "grep 'ERROR SUMMARY: 0 errors' $BUILD/log/valgrind"
    rm -f "$BUILD/log/train_gpt"
else echo "left out: the trainer under valgrind (apt-get install valgrind)"; fi
finish
