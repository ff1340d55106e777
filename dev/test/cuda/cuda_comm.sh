#!/bin/bash
# comm.h where there is a device, on the emulator: builds dev/test/cuda/cuda_comm.cu twice (MPI alone; MPI and NCCL,
# which is dev/test/fake/nccl.h) and once more under the sanitizers, starts 1 to 4 ranks, and then everything that can
# go wrong: ranks that die, orders that end in a deadlock. Whatever is wrong has to end soon, with one line that says
# why. LONG=1: more numbers of ranks, and MPI's build under the sanitizers.
set -u
project=$PWD
. dev/test/system/checks.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
export FAKE_NCCL_DIR=$work OMPI_MCA_btl_vader_backing_directory=$work
export CUDA_ON_CPU_THREADS=1 OMP_NUM_THREADS=1 ASAN_OPTIONS=detect_leaks=0
unset NCCL_HOSTID NCCL_MULTI_RANK_GPU_ENABLE NCCL_RUNTIME_CONNECT CUDA_DEVICE_MAX_CONNECTIONS
export CUDA_MODULE_LOADING=LAZY # as many images do

# ---- build
mpi_flags=() mpi_libs=()
for word in $(${MPICC:-mpicc} -show); do
    case $word in -I* | -D*) mpi_flags+=("$word") ;; -L* | -l*) mpi_libs+=("$word") ;; esac
done
compile() { # PROGRAM FLAGS...
    if ${CXX:-g++} -std=c++17 -O1 -Wall -Wextra -Werror -Wno-unknown-pragmas -pthread -DUSE_CUDA \
        "${@:2}" -x c++ "$project/dev/test/cuda/cuda_comm.cu" -x none -o "$1" "${mpi_libs[@]}" -lm >"$1.said" 2>&1
    then ok "builds $1"
    else
        bad "builds $1: $(grep -m 3 'error\|warning' "$1.said")"
        finish
    fi
}
nccl=(-DUSE_NCCL "-I$project/dev/test/fake") mpi=(-DUSE_MPI "${mpi_flags[@]}")
sanitized=(-O0 -g -fsanitize=address -fsanitize=undefined -fno-sanitize-recover=all)
compile mpi "${mpi[@]}"
compile both "${nccl[@]}" "${mpi[@]}"
compile san_both "${nccl[@]}" "${mpi[@]}" "${sanitized[@]}"
[ -z "${LONG:-}" ] || compile san_mpi "${mpi[@]}" "${sanitized[@]}"

# ---- start
# has_ranks PROCESS: it has children that live (a zombie executes nothing)
has_ranks() {
    local child
    # shellcheck disable=SC2013  # words
    for child in $(cat "/proc/$1/task/$1/children" 2>/dev/null); do [ ! -e "/proc/$child/exe" ] || return 0; done
    return 1
}
# mpirun_ranks N PROGRAM...: output to out, the exit status to $status, how long it took to $seconds. Open MPI 4.1's
# mpirun itself crashes now and then when a rank aborts the job (of a rank's crash it tells), or stays behind when no
# rank is there any more: then it is started again, three times at most.
mpirun_ranks() {
    local begun pid alone
    for _ in 1 2 3 4; do
        begun=$SECONDS alone=0
        "$project/scripts/mpirun.sh" -np "$@" >out 2>&1 </dev/null &
        pid=$!
        while kill -0 $pid 2>/dev/null && [ $((SECONDS - begun)) -lt 100 ]; do
            sleep 0.1
            if has_ranks $pid; then alone=0; else alone=$((alone + 1)); fi
            [ $alone -lt 100 ] || break # ten seconds: it has been left behind
        done
        if kill -0 $pid 2>/dev/null; then
            if has_ranks $pid; then # ranks that hang: this is ours
                kill $pid && sleep 1
                kill -9 $pid 2>/dev/null
                status=124 seconds=$((SECONDS - begun))
                return
            fi
            kill -9 $pid
        fi
        { wait $pid; } 2>/dev/null
        status=$? seconds=$((SECONDS - begun))
        if [ $status = 137 ] && ! grep -qai signal out; then continue; fi
        if [ $status != 139 ] || grep -qai signal out; then break; fi
    done
}
ranks() { # PROGRAM N ARGUMENTS...
    case $1 in
    *both) NCCL_MULTI_RANK_GPU_ENABLE=1 mpirun_ranks "$2" "./$1" "${@:3}" ;;
    *) mpirun_ranks "$2" "./$1" "${@:3}" ;;
    esac
}

# ---- everything right
right() { # WHAT: of the tests that have just run
    if [ $status = 0 ] && grep -qa '[0-9] passed, 0 failed$' out; then ok "$1: $(grep -a ' passed, ' out) ($seconds s)"
    else bad "$1: exit status $status after $seconds s: $(grep -a '^FAIL\|rror\|fake\|cuda_comm' out | head -n 5)"; fi
}
for program in mpi both; do
    case ${LONG:-$program} in mpi) numbers="4" ;; both) numbers="1 4" ;; *) numbers="1 2 3 4" ;; esac
    for n in $numbers; do ranks "$program" "$n" --short && right "$program, $n ranks"; done
done
CUDA_ON_CPU_DEFER=1 ranks both 2 && right "nccl, 2 ranks, all of it, kernels as late as may be"
ranks san_both 3 --short && right "nccl, 3 ranks, sanitized"
if [ -n "${LONG:-}" ]; then ranks san_mpi 2 --short && right "mpi, 2 ranks, sanitized"; fi
ranks mpi 2 && right "mpi, 2 ranks, all of it"
mpirun_ranks 2 ./both --short && right "both, 2 ranks that share a GPU"
grep -qa 'carried: "through host memory (ranks share a GPU)"' out || bad "... go through the host"

# ---- something wrong
# wrong WHAT STATUS TEXT [LINES]: what was just started has ended with STATUS, soon; of its LINES lines one has TEXT
wrong() {
    local said
    said=$(grep -ac '^cuda_comm: \|^closed' out)
    if [ $status = "$2" ] && [ $seconds -le 60 ] && grep -aqF -- "$3" out && [ "$said" = "${4:-$said}" ]
    then ok "$1 -> $(grep -am 1 -F -- "$3" out)"
    else bad "$1: status $status, not $2, $seconds s, expected \"$3\", ${4:-any} line(s): $(head -c 700 out)"; fi
}
fine() { # WHAT: what was just started has ended well, and has said nothing
    if [ $status = 0 ] && [ "$(grep -acv '^closed$' out)" = 0 ]; then ok "$1 ($seconds s)"
    else bad "$1: exit status $status: $(head -c 700 out)"; fi
}
export FAKE_NCCL_SECONDS=2
for program in mpi both; do
    ranks "$program" 3 usage && wrong "$program: wrong arguments" 2 "cuda_comm: the test says so" 1
    ranks "$program" 3 together && wrong "$program: the same error" 1 "cuda_comm: the test says so" 1
    ranks "$program" 3 lonely
    wrong "$program: one rank alone is wrong" 2 "wrong arguments or files, which other ranks do not have" 1
    ranks "$program" 3 die && wrong "$program: a rank dies" 1 "cuda_comm: rank 2: the test says so" 1
    ranks "$program" 2 mixed && wrong "$program: two kinds of memory" 1 "one buffer is in host memory and one is not"
done
ranks both 3 kill && wrong "a rank is killed" 137 "process rank 2" 0
ranks both 3 gone && wrong "a rank is killed, the others are at a barrier" 137 "process rank 2" 0
ranks both 3 late && wrong "a rank dies late" 1 "cuda_comm: rank 2: the test says so" 1
ranks both 3 busy && wrong "a rank dies, the others compute" 1 "cuda_comm: rank 2: the test says so" 1
ranks both 3 unsent && fine "two receives in flight that wait for ever"
FAKE_NCCL_ABORT_HANGS=1 FAKE_NCCL_SECONDS=20 ranks both 2 lanes
wrong "NCCL does not end" 142 "exited on signal 14"
FAKE_NCCL_SECONDS=20 ranks both 2 --seconds 1 stuck
wrong "a rank is out of time" 124 "cuda_comm: rank 0 is not done within 1 s"
NCCL_RUNTIME_CONNECT=1 ranks both 2 --short
wrong "NCCL_RUNTIME_CONNECT of the user" 70 "the connection for all-reduce number 0"
# What NCCL would not report; here the fake does, with status 70.
ranks both 2 nolanes && wrong "receives on one stream" 70 "a deadlock"
ranks both 2 swapped && wrong "receives in the wrong order" 70 "but rank 0: message of 8 elements"
ranks both 2 length && wrong "a message of another length" 70 "but rank 0: message of 17 elements"
export CUDA_DEVICE_MAX_CONNECTIONS=1 # which no rank keeps
ranks both 2 lanes && fine "lanes"
finish
