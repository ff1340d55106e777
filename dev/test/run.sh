#!/bin/sh
# Runs every test program, most of them also under AddressSanitizer and UndefinedBehaviorSanitizer, the fuzzers for a bounded
# time, the command line, the launchers, and other compilers. Called by make test, which has built them. A program's
# whole output goes to $BUILD/log; here it gets one line, and its failures are shown.
#
# A test program whose first comment has a line "ranks: 1 2 4" is run with 1, 2 and 4 ranks. Rank 0 prints what all of
# them found, and the status is not 0 if any of them failed. MPIRUN is the mpirun to use, empty where MPI was not found.
set -u
mkdir -p "$BUILD/log"
passed=0 failed=0 left_out=0
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
# Two tests at a time have more threads than there are cores: one that waits must not keep a core from one that works.
export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-passive}"
limit=${RANKS_TIMEOUT:-900} # seconds for a run with several ranks: waiting for each other for ever is a failure

# run LABEL COMMAND...: its output, exit status and seconds go to files
run() {
    file="$BUILD/log/$(echo "$1" | tr ' /' '__')"
    shift
    start=$(date +%s)
    "$@" >"$file.log" 2>&1
    echo "$? $(($(date +%s) - start))" >"$file.status"
}

# tell LABEL: its line, after run; adds up its closing line "N passed, N failed"
tell() {
    file="$BUILD/log/$(echo "$1" | tr ' /' '__')"
    label=$1 log=$file.log
    read -r status seconds <"$file.status"
    last=$(grep -a '^[0-9][0-9]* passed, [0-9][0-9]* failed$' "$log" | tail -n 1)
    p=$(expr "$last" : '\([0-9][0-9]*\) passed, [0-9][0-9]* failed$') || p=0
    f=$(expr "$last" : '[0-9][0-9]* passed, \([0-9][0-9]*\) failed$') || f=0
    if [ "$status" -ne 0 ] && [ "$f" = 0 ]; then # crashed, or a sanitizer's report
        f=1
        tail -n 30 "$log"
    fi
    if [ "$status" -eq 0 ] && [ "$p" = 0 ]; then
        f=1
        echo "no test was run"
    fi
    passed=$((passed + p)) failed=$((failed + f))
    [ "$f" = 0 ] || grep -a '^FAIL' "$log"
    printf '%-34s %5d passed  %3d failed  %4d s\n' "$label" "$p" "$f" "$seconds"
}

one() { run "$@" && tell "$1"; }

# twice LABEL COMMAND...: like one, for what starts runs of several ranks: if it fails, it is done once more. Open MPI 4.1's mpirun itself
# crashes or stays behind now and then when a rank ends the job, and a busy machine can hold a rank up for longer than a test waits for it. Both
# outcomes are shown, and a fault of ours fails twice.
twice() {
    run "$@"
    again "$@"
}
again() {
    file="$BUILD/log/$(echo "$1" | tr ' /' '__')"
    if ! grep -q '^0 ' "$file.status"; then
        echo "again: $1, which has failed once:"
        grep -a '^FAIL' "$file.log" || tail -n 5 "$file.log"
        run "$@"
    fi
    tell "$1"
}

# two LABEL COMMAND...: like one, beside the next that is called so. both: waits for the last one.
first=""
two() {
    run "$@" &
    if [ -z "$first" ]; then first=$1; else wait && tell "$first" && tell "$1" && first=""; fi
}
both() {
    wait
    [ -z "$first" ] || tell "$first"
    first=""
}

# ranks_of TEST [WHEN]: the numbers of ranks that its first comment asks for after "ranks:", or 1; WHEN = " sanitized":
# after "ranks sanitized:" where it says so, fewer, because that is slow
ranks_of() {
    source=dev/test/unit/$1.c
    [ -f "$source" ] || source=$1.c
    numbers=$(sed -n '/^[ *\/]*ranks'"${2:-}"':/{s/.*: *//;s/\*\/.*//;p;};/\*\//q' "$source")
    if [ -z "$numbers" ] && [ -n "${2:-}" ]; then ranks_of "$1"; else echo "${numbers:-1}"; fi
}

# with_ranks N COMMAND...: several ranks, for a limited time; leaks that MPI itself has are not ours. --foreground, or
# timeout would signal mpirun twice, which Open MPI takes as "leave at once": its ranks would stay behind for ever.
with_ranks() {
    n=$1
    shift
    ASAN_OPTIONS=detect_leaks=0 timeout --foreground -k 10 "$limit" scripts/mpirun.sh -np "$n" "$@" </dev/null
    n=$?
    [ $n != 124 ] || echo "FAIL  stopped after $limit s: do some ranks wait for others that never come?"
    return $n
}

# all LABEL PROGRAM [OPTION]: with every number of ranks that the test asks for; where that is one, two tests at a time
all() {
    name=$1 program=$2 when=""
    shift 2
    [ $# = 0 ] || when=" sanitized"
    for ranks in $(ranks_of "${program##*/}" "$when"); do
        if [ "$ranks" = 1 ]; then two "$name" "$program" "$@"
        elif [ -z "${MPIRUN:-}" ]; then left_out=$((left_out + 1))
        else both && twice "$name, $ranks ranks" with_ranks "$ranks" "$program" "$@"; fi
    done
}

for test in $TESTS; do all "$test" "$BUILD/$test"; done
for test in ${SANITIZED_TESTS-$TESTS}; do all "$test sanitized" "$BUILD/sanitized/$test" --short; done
both
# Ranks of a mesh often wait for each other, or for mpirun: beside them, one after another, what needs one core.
[ -z "${MPIRUN:-}" ] || run "meshes" dev/test/system/test_mesh.sh &
for fuzzer in $FUZZERS; do one "$fuzzer" "$BUILD/sanitized/$fuzzer" 8 "$(date +%j)"; done
one "command line" dev/test/system/test_cli.sh
one "compilers" dev/test/system/test_compilers.sh
one "data tools" dev/test/system/test_data.sh
twice "GPU check" dev/test/system/test_gpu_check.sh
twice "launchers" dev/test/system/test_launch.sh
[ -z "${LONG:-}" ] || twice "launchers with real programs" dev/test/system/test_launch_real.sh
twice "runs that stop" dev/test/system/test_stop.sh
twice "evaluations" dev/test/system/test_evaluations.py
one "a run as a page" dev/test/system/test_report.py
if dev/test/system/check_generate.py --installed; then one "text beside PyTorch" dev/test/system/check_generate.py
else echo "without torch texts are not compared with PyTorch's (apt-get install python3-torch)"; fi
one "weights of others" dev/test/system/test_pretrained.py
if dev/test/system/check_transformers.py --installed; then one "transformers" dev/test/system/check_transformers.py
else echo "without torch and transformers models are not compared with theirs (make check_transformers)"; fi
wait
if [ -n "${MPIRUN:-}" ]; then
    again "meshes" dev/test/system/test_mesh.sh
    twice "runs that hang" dev/test/system/test_watch.sh
    short=--short
    [ -z "${LONG:-}" ] || short=""
    twice "replicas beside PyTorch" dev/test/system/check_replicas.py ${short:+"$short"}
    twice "survival" dev/test/system/torture.py --short --seed "$(date +%j)"
    [ -z "${LONG:-}" ] || one "replicas on meshes" dev/test/system/check_replicas.py --mesh
    [ -z "${LONG:-}" ] || one "several paths" dev/experiments/test_paths.sh
else left_out=$((left_out + 1)); fi
if [ -n "${GPU_TESTS:-}" ]; then twice "CUDA, emulated" dev/test/cuda/cuda_tests.sh
else echo "without a C++ compiler the CUDA kernels are left out (scripts/test.sh installs it)"; fi
[ $left_out = 0 ] || echo "left out: $left_out runs with several ranks, there is no MPI (scripts/test.sh installs it)"
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
