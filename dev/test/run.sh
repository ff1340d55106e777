#!/bin/bash
# Runs the tests of a tier, which make has built. Each program prints its own lines to $BUILD/log; here it gets one:
# passed, failed, seconds, processor time; failures are shown. The last line is "N passed, N failed".
#
#   TIER=quick   PLAIN, SANITIZED, and one mesh
#   TIER=test    the above, fuzzers, meshes, the command line, and one short test of each other part
#   TIER=full    the longest form of every test, launchers, compilers, and the GPU's trainer on the emulator
#
# PLAIN, SANITIZED: programs, as users build them and with AddressSanitizer and UBSan. One whose first comment
# has a line "ranks: 1 2 4" runs with 1, 2 and 4 ranks; "ranks sanitized: 2": those of sanitizers and of TIER=test.
# MPIRUN: the launcher, empty without MPI.
set -u
mkdir -p "$BUILD/log"
sums=$BUILD/log/sums left_out=0 # sums: a line "PASSED FAILED" of each test that has been told
: >"$sums"
[ "$TIER" != full ] || export LONG=1
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
# Two tests at a time have more threads than there are cores: a waiting thread must not keep a core from a working one.
export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-passive}"
limit=${RANKS_TIMEOUT:-900} # seconds for a run with several ranks

# run LABEL COMMAND...: its output, exit status and seconds go to files
run() {
    local file=$BUILD/log/${1//[ \/]/_} TIMEFORMAT="%R %U %S"
    { time "${@:2}" >"$file.log" 2>&1; } 2>"$file.time"
    echo "$? $(tail -n 1 "$file.time")" >"$file.status"
}

# tell LABEL: its line, after run; notes what its closing line "N passed, N failed" says
tell() {
    local file=$BUILD/log/${1//[ \/]/_} last status seconds user system p=0 f=0
    read -r status seconds user system <"$file.status"
    last=$(grep -a '^[0-9][0-9]* passed, [0-9][0-9]* failed$' "$file.log" | tail -n 1)
    [ -z "$last" ] || read -r p _ f _ <<<"$last"
    if [ "$status" -ne 0 ] && [ "$f" = 0 ]; then # it crashed, or a sanitizer ended it
        f=1
        tail -n 30 "$file.log"
    fi
    if [ "$status" -eq 0 ] && [ "$p" = 0 ] && ! grep -q '^left out' "$file.log"; then
        f=1
        echo "no test was run"
    fi
    echo "$p $f" >>"$sums"
    [ "$f" = 0 ] || grep -a '^FAIL' "$file.log"
    printf '%-34s %5d passed  %3d failed  %4.0f s  %4.0f s of CPU\n' "$1" "$p" "$f" "$seconds" \
        "$(awk "BEGIN { print $user + $system }")"
}

one() { run "$@"; tell "$1"; }

# twice LABEL COMMAND...: like one, for runs of several ranks: if it fails, it runs once more. Open MPI 4.1's mpirun
# itself crashes or stays now and then when a rank ends the job, and a busy machine can stop a rank for longer than a
# test waits. Both results are shown; a fault of ours fails twice.
twice() { run "$@"; again "$@"; }
again() {
    local file=$BUILD/log/${1//[ \/]/_}
    if ! grep -q '^0 ' "$file.status"; then
        echo "again: $1, which has failed once:"
        grep -a '^FAIL' "$file.log" || tail -n 5 "$file.log"
        run "$@"
    fi
    tell "$1"
}

# beside LABEL COMMAND...: like one, but in the background, at most $at_once at a time; it tells in one piece
at_once=2
beside() {
    while [ "$(jobs -rp | wc -l)" -ge $at_once ]; do wait -n; done
    { run "$@"; printf '%s\n' "$(tell "$1")"; } &
}

# ranks_of TEST WHEN: the numbers after "ranks:" in its first comment, or 1. WHEN " sanitized": after "ranks sanitized:"
ranks_of() {
    local source=dev/test/unit/$1.c numbers
    [ -f "$source" ] || source=$1.c
    numbers=$(sed -n '/^[ *\/]*ranks'"$2"':/{s/.*: *//;s/\*\/.*//;p;};/\*\//q' "$source")
    if [ -z "$numbers" ] && [ -n "$2" ]; then ranks_of "$1" ""; else echo "${numbers:-1}"; fi
}

# with_ranks N COMMAND...: for a limited time; MPI's own leaks are not ours. --foreground, or timeout would signal
# mpirun twice, which Open MPI takes as "leave at once": its ranks would stay for ever.
with_ranks() {
    local status
    ASAN_OPTIONS=detect_leaks=0 timeout --foreground -k 10 "$limit" scripts/mpirun.sh -np "$1" "${@:2}" </dev/null
    status=$?
    [ $status != 124 ] || echo "FAIL  stopped after $limit s: do some ranks wait for others that never come?"
    return $status
}

# alone LABEL WHEN PROGRAM [OPTION]: on one rank, if the test asks for that; on_meshes: with every other number of ranks
alone() {
    case " $(ranks_of "${3##*/}" "$2") " in *" 1 "*) beside "$1" "${@:3}" ;; esac
}
on_meshes() {
    local ranks
    for ranks in $(ranks_of "${3##*/}" "$2"); do
        if [ "$ranks" = 1 ]; then continue
        elif [ -z "${MPIRUN:-}" ]; then left_out=$((left_out + 1))
        else twice "$1, $ranks ranks" with_ranks "$ranks" "${@:3}"; fi
    done
}

system=dev/test/system
few=" sanitized" seconds=2 short=--short
[ "$TIER" != full ] || few="" seconds=8 short=""
# each_test RUN: calls RUN, alone or on_meshes, for every test program.
each_test() {
    for test in $SANITIZED; do "$1" "$test sanitized" " sanitized" "$BUILD/sanitized/$test" --short; done
    for test in $PLAIN; do "$1" "$test" "$few" "$BUILD/$test"; done
}
if [ "$TIER" != quick ] && [ -n "${MPIRUN:-}" ]; then
    run "meshes" $system/test_mesh.sh & # its ranks often wait for each other, or for mpirun: two tests run beside it
    at_once=3
fi
[ "$TIER" = quick ] || beside "command line" $system/test_cli.sh
each_test alone
if [ "$TIER" != quick ]; then
    beside "terminal" $system/test_terminal.py
    beside "imported weights" $system/test_pretrained.py
    beside "report page" $system/test_report.py
    beside "advice of refusals" $system/test_remedies.py
    [ "$TIER" = full ] || beside "docs" $system/check_docs.py --quick
    [ -z "${MPIRUN:-}" ] || beside "ladder" docs/ladder/ladder.py ${short:+--only 8} # on three meshes, beside the first
    beside "kernel ladder" docs/ladder/kernels/kernels.py ${short:+--only 10}
    [ "$TIER" != full ] || beside "faults in the kernel ladder" docs/ladder/kernels/kernels.py --plant
    for fuzzer in $FUZZERS; do beside "$fuzzer" "$BUILD/sanitized/$fuzzer" $seconds "$(date +%j)"; done
    [ ! -x dev/tidy.py ] || beside "tidy" sh -c 'dev/tidy.py && echo "1 passed, 0 failed"'
    beside "exercises" dev/exercises/verify.py --static
    beside "silent bugs" dev/test/mutants/replay.py --static
    beside "tokenize" $system/test_data.sh
    beside "tables of pictures" $system/test_tables.py
fi
wait
each_test on_meshes
if [ "$TIER" = quick ]; then
    one "one mesh" env PARTS=quick $system/test_mesh.sh
else
    [ -z "${MPIRUN:-}" ] || run "bf16" $system/test_precision.sh &
    twice "evaluations" $system/test_evaluations.py
fi
if [ "$TIER" = full ]; then
    one "compilers" $system/test_compilers.sh
    twice "docs" $system/check_docs.py
    twice "GPU check" $system/test_gpu_check.sh
    twice "faults that make compare sees" $system/test_plants.py
    twice "launchers" $system/test_launch.sh
    twice "launchers with real programs" $system/test_launch_real.sh
    twice "runs that stop" $system/test_stop.sh
    for test in generate transformers; do
        if $system/check_$test.py --installed; then one "$test beside PyTorch" $system/check_$test.py
        else echo "left out: check_$test.py, without torch or transformers (apt-get install python3-torch)"; fi
    done
fi
if [ "$TIER" != quick ] && [ -n "${MPIRUN:-}" ]; then
    again "meshes" $system/test_mesh.sh
    twice "replicas beside PyTorch" $system/check_replicas.py $short
    twice "canonical sums" $system/test_canonical.sh
    wait
    again "bf16" $system/test_precision.sh
fi
if [ "$TIER" = full ] && [ -n "${MPIRUN:-}" ]; then
    twice "failing runs" $system/test_runs.sh
    for test in mesh runs; do twice "test_$test in bf16" env PRECISION=bf16 $system/test_$test.sh; done
    twice "hanging runs" $system/test_watch.sh
    twice "survival" $system/torture.py --short --seed "$(date +%j)"
    one "replicas on meshes" $system/check_replicas.py --mesh
fi
if [ "$TIER" = quick ]; then :
elif [ -n "${GPU_TESTS:-}" ]; then twice "CUDA, emulated" dev/test/cuda/cuda_tests.sh
else echo "left out: the CUDA kernels on the emulator, there is no C++ compiler (scripts/test.sh installs it)"; fi
[ $left_out = 0 ] || echo "left out: $left_out runs with several ranks, there is no MPI (scripts/test.sh installs it)"
awk '{ passed += $1; failed += $2 } END { print passed + 0 " passed, " failed + 0 " failed"; exit failed > 0 }' \
    "$sums"
