#!/bin/sh
# Runs every test program, each also under AddressSanitizer and UndefinedBehaviorSanitizer, the fuzzers for a bounded
# time, the command line, and other compilers. Called by make test, which has built them. A program's whole output goes
# to $BUILD/log; here it gets one line, and its failures are shown.
set -u
mkdir -p "$BUILD/log"
passed=0 failed=0
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1

# one LABEL COMMAND...: runs it and adds up its closing line "N passed, N failed"
one() {
    label=$1 log="$BUILD/log/$(echo "$1" | tr ' /' '__').log"
    shift
    start=$(date +%s)
    "$@" >"$log" 2>&1
    status=$?
    last=$(tail -n 1 "$log")
    p=$(expr "$last" : '\([0-9][0-9]*\) passed, [0-9][0-9]* failed$') || p=0
    f=$(expr "$last" : '[0-9][0-9]* passed, \([0-9][0-9]*\) failed$') || f=0
    if [ $status -ne 0 ] && [ "$f" = 0 ]; then # crashed, or a sanitizer's report
        f=1
        tail -n 30 "$log"
    fi
    if [ $status -eq 0 ] && [ "$p" = 0 ]; then
        f=1
        echo "no test was run"
    fi
    passed=$((passed + p)) failed=$((failed + f))
    [ "$f" = 0 ] || grep -a '^FAIL' "$log"
    printf '%-34s %5d passed  %3d failed  %4d s\n' "$label" "$p" "$f" $(($(date +%s) - start))
}

for test in $TESTS; do one "$test" "$BUILD/$test"; done
for test in $TESTS; do one "$test sanitized" "$BUILD/sanitized/$test" --short; done
for fuzzer in $FUZZERS; do one "$fuzzer" "$BUILD/sanitized/$fuzzer" 8 "$(date +%j)"; done
one "command line" dev/test/test_cli.sh
one "compilers" dev/test/test_compilers.sh
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
