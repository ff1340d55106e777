#!/bin/bash
# comm.h where there is a device, on the emulator: builds dev/test/cuda/cuda_comm.cu three times (MPI alone; MPI and
# NCCL; NCCL alone, that is dev/test/fake/nccl.h) and twice more under the sanitizers, starts 1 to 4 ranks by mpirun or
# by a loop, as torchrun would, and then everything that can go wrong: ranks that die, ranks that do not find each
# other, orders that end in a deadlock. Whatever is wrong has to end soon, with one line that says why. MPIRUN is empty
# where there is no MPI. LONG=1: more numbers of ranks, and MPI's build under the sanitizers.
set -u
project=$PWD
. dev/test/system/checks.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
export FAKE_NCCL_DIR=$work OMPI_MCA_btl_vader_backing_directory=$work
export CUDA_ON_CPU_THREADS=1 OMP_NUM_THREADS=1 ASAN_OPTIONS=detect_leaks=0
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT TORCHELASTIC_USE_AGENT_STORE THREEFOLD_SECRET
unset NCCL_HOSTID NCCL_MULTI_RANK_GPU_ENABLE NCCL_RUNTIME_CONNECT CUDA_DEVICE_MAX_CONNECTIONS CUDA_MODULE_LOADING

# ---- build
mpi_command=""
[ "${MPIRUN-mpirun}" = "" ] || mpi_command=$(${MPICC:-mpicc} -show 2>/dev/null)
mpi_flags=() mpi_libs=()
for word in $mpi_command; do
    case $word in -I* | -D*) mpi_flags+=("$word") ;; -L* | -l*) mpi_libs+=("$word") ;; esac
done
compile() { # PROGRAM FLAGS...
    if ${CXX:-g++} -std=c++17 -O1 -Wall -Wextra -Werror -Wno-unknown-pragmas -pthread -DUSE_CUDA \
        -DRENDEZVOUS_SECONDS=3 "${@:2}" -x c++ "$project/dev/test/cuda/cuda_comm.cu" -x none -o "$1" "${mpi_libs[@]}" \
        -lm \
        >"$1.said" 2>&1
    then ok "builds $1"
    else
        bad "builds $1: $(grep -m 3 'error\|warning' "$1.said")"
        finish
    fi
}
nccl=(-DUSE_NCCL "-I$project/dev/test/fake") mpi=(-DUSE_MPI "${mpi_flags[@]}")
sanitized=(-O0 -g -fsanitize=address -fsanitize=undefined -fno-sanitize-recover=all)
programs=(nccl)
compile nccl "${nccl[@]}"
compile san_nccl "${nccl[@]}" "${sanitized[@]}"
if [ -n "$mpi_command" ]; then
    programs=(mpi both nccl)
    compile mpi "${mpi[@]}"
    compile both "${nccl[@]}" "${mpi[@]}"
    [ -z "${LONG:-}" ] || compile san_mpi "${mpi[@]}" "${sanitized[@]}"
fi

# ---- start
port=$((20000 + $$ % 10000)) # each start has one of its own
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
    local begun pid
    for _ in 1 2 3 4; do
        begun=$SECONDS
        "$project/scripts/mpirun.sh" -np "$@" >out 2>&1 </dev/null &
        pid=$!
        while kill -0 $pid 2>/dev/null && [ $((SECONDS - begun)) -lt 100 ]; do
            sleep 0.1
            # alone for ten seconds: it has been left behind
            if [ $((SECONDS - begun)) -ge 10 ] && ! has_ranks $pid; then break; fi
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
# loop_ranks N PROGRAM...: without MPI; the status is the largest one. Rank $odd_rank has the variables $odd besides.
odd_rank=none odd=""
loop_ranks() {
    local n=$1 rank pids=() begun=$SECONDS one
    shift
    port=$((port + 2)) status=0
    : >out
    for ((rank = 0; rank < n; rank++)); do
        local variables=("RANK=$rank" "LOCAL_RANK=$rank" "WORLD_SIZE=$n" MASTER_ADDR=localhost "MASTER_PORT=$port")
        [ "$odd_rank" != $rank ] || variables+=("$odd")
        timeout -k 5 100 env NCCL_MULTI_RANK_GPU_ENABLE=1 "${variables[@]}" "$@" >>out 2>&1 </dev/null &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do
        wait "$pid" 2>/dev/null
        one=$?
        [ $one -le $status ] || status=$one
    done
    seconds=$((SECONDS - begun))
}
ranks() { # PROGRAM N ARGUMENTS...
    case $1 in
    *nccl) loop_ranks "$2" "./$1" "${@:3}" ;;
    both) NCCL_MULTI_RANK_GPU_ENABLE=1 mpirun_ranks "$2" "./$1" "${@:3}" ;;
    *) mpirun_ranks "$2" "./$1" "${@:3}" ;;
    esac
}

# ---- everything right
right() { # WHAT: of the tests that have just run
    if [ $status = 0 ] && grep -qa '[0-9] passed, 0 failed$' out; then ok "$1: $(grep -a ' passed, ' out) ($seconds s)"
    else bad "$1: exit status $status after $seconds s: $(grep -a '^FAIL\|rror\|fake\|cuda_comm' out | head -n 5)"; fi
}
for program in "${programs[@]}"; do
    case ${LONG:-$program} in mpi) numbers="4" ;; both) numbers="3" ;; nccl) numbers="1 4" ;; *) numbers="1 2 3 4" 
    esac
    for n in $numbers; do ranks "$program" "$n" --short && right "$program, $n ranks"; done
done
ranks nccl 2 && right "nccl, 2 ranks, all of it"
ranks san_nccl 3 --short && right "nccl, 3 ranks, sanitized"
if [ -n "$mpi_command" ]; then
    if [ -n "${LONG:-}" ]; then ranks san_mpi 2 --short && right "mpi, 2 ranks, sanitized"; fi
    ranks mpi 2 && right "mpi, 2 ranks, all of it"
    mpirun_ranks 2 ./both --short && right "both, 2 ranks that share a GPU"
    grep -qa 'carried: "through host memory (ranks share a GPU)"' out || bad "... go through the host"
fi
cat >srun.sh <<'SH'
export SLURM_PROCID=$RANK SLURM_LOCALID=$LOCAL_RANK SLURM_STEP_NUM_TASKS=$WORLD_SIZE
unset RANK LOCAL_RANK WORLD_SIZE
exec ./nccl --short
SH
loop_ranks 2 sh srun.sh && right "nccl, 2 ranks of srun"

# ---- something wrong
# wrong WHAT STATUS TEXT [LINES]: what was just started has ended with STATUS, soon; of its LINES lines one has TEXT
wrong() {
    local said
    said=$(grep -ac '^cuda_comm: \|^closed' out)
    if [ $status = "$2" ] && [ $seconds -le 60 ] && grep -aqF -- "$3" out && [ "$said" = "${4:-$said}" ]
    then ok "$1 -> $(grep -am 1 -F -- "$3" out)"
    else bad "$1: status $status (expected $2) after $seconds s, expected \"$3\", $4 line(s): $(head -c 700 out)"; fi
}
fine() { # WHAT: what was just started has ended well, and has said nothing
    if [ $status = 0 ] && [ "$(grep -acv '^closed$' out)" = 0 ]; then ok "$1 ($seconds s)"
    else bad "$1: exit status $status: $(head -c 700 out)"; fi
}
export FAKE_NCCL_SECONDS=2
for program in "${programs[@]}"; do
    [ "$program" != both ] || [ -n "${LONG:-}" ] || continue # the two halves of it are tested
    ranks "$program" 3 usage && wrong "$program: wrong arguments" 2 "cuda_comm: the test says so" 1
    ranks "$program" 3 together && wrong "$program: the same error" 1 "cuda_comm: the test says so" 1
    ranks "$program" 3 lonely
    wrong "$program: one rank alone is wrong" 2 "wrong arguments or files, which other ranks do not have" 1
    ranks "$program" 3 die && wrong "$program: a rank dies" 1 "cuda_comm: rank 2: the test says so" 1
    ranks "$program" 2 mixed && wrong "$program: two kinds of memory" 1 "one buffer is in host memory and one is not"
done
ranks nccl 3 kill && wrong "a rank is killed" 137 "rank 2 has ended without a word" 1
ranks nccl 3 gone && wrong "a rank is killed, the others are at a barrier" 137 "rank 2 has ended without a word" 1
ranks nccl 3 late && wrong "a rank dies late" 1 "cuda_comm: rank 2: the test says so" 1
ranks nccl 3 busy && wrong "a rank dies, the others compute" 1 "cuda_comm: rank 2: the test says so" 1
ranks nccl 3 unsent && fine "two receives in flight that wait for ever"
FAKE_NCCL_ABORT_HANGS=1 FAKE_NCCL_SECONDS=20 ranks nccl 2 lanes
wrong "NCCL does not end" 1 "cuda_comm: rank 1: NCCL did not close its communicators within 10 s" 2
FAKE_NCCL_SECONDS=20 ranks nccl 2 --seconds 1 stuck
wrong "a rank is out of time" 124 "cuda_comm: rank 0 is not done within 1 s"
NCCL_RUNTIME_CONNECT=1 ranks nccl 2 --short
wrong "NCCL_RUNTIME_CONNECT of the user" 70 "the connection for all-reduce number 0"
ranks nccl 2 alone && wrong "a message to oneself is never sent" 1 "the other half of a message to oneself" 2
# What NCCL would not report; here the fake does, with status 70.
ranks nccl 2 nolanes && wrong "receives on one stream" 70 "a deadlock"
ranks nccl 2 swapped && wrong "receives in the wrong order" 70 "but rank 0: message of 8 elements"
ranks nccl 2 length && wrong "a message of another length" 70 "but rank 0: message of 17 elements"
export CUDA_DEVICE_MAX_CONNECTIONS=1
ranks nccl 2 lanes && wrong "one queue for all streams" 2 "CUDA_DEVICE_MAX_CONNECTIONS is 1" 1
unset CUDA_DEVICE_MAX_CONNECTIONS
ranks nccl 2 lanes && fine "lanes"

# ---- finding each other (attacks: test_rendezvous.c)
differs() { # WHAT RANK VARIABLE STATUS TEXT LINES: one of 3 ranks has another variable
    odd_rank=$2 odd=$3
    ranks nccl 3 lanes
    odd_rank=none
    wrong "$1" "$4" "$5" "${6:-}"
}
differs "no secret, one rank on another machine" 2 LOCAL_WORLD_SIZE=2 1 "THREEFOLD_SECRET is not set" 3
export THREEFOLD_SECRET=cuda_comm.sh.$RANDOM.$RANDOM
differs "another secret" 2 THREEFOLD_SECRET=not.that.of.the.others 1 "does not know this rank's THREEFOLD_SECRET"
differs "a shared GPU, one rank is unwilling" 2 NCCL_MULTI_RANK_GPU_ENABLE=0 2 "ranks 0 and 1 share GPU" 1
differs "another number of ranks" 2 WORLD_SIZE=4 1 "rank 2 says that there are 4 ranks, rank 0 that there are 3" 3
differs "a rank twice" 2 RANK=1 1 "two processes say that they are rank 1" 3
differs "a rank too many" 2 RANK=3 1 "RANK is 3 and WORLD_SIZE is 3: ranks count from 0 to 2" 3
differs "no rank" 2 RANK=two 1 'RANK is "two", not a number from 0 on' 3
differs "no local rank" 2 LOCAL_RANK= 1 'LOCAL_RANK is "", not a number' 3
differs "no master" 2 MASTER_ADDR= 1 "MASTER_ADDR is not: it names the machine of rank 0" 3
differs "a wrong port" 2 MASTER_PORT=1 1 "cannot reach rank 0 at localhost:1 within 3 s: Connection refused" 3
differs "a port that is none" 2 MASTER_PORT=70000 1 "ports end at 65535" 3
differs "no such machine" 2 MASTER_ADDR=no.such.machine.invalid 1 "cannot reach rank 0 at no.such.machine.invalid" 3
differs "rank 0 is missing" 0 WORLD_SIZE=1 1 "cannot reach rank 0 at localhost" 3

unset THREEFOLD_SECRET

# listen ANSWER: another program on the next port, which says something to who comes
listen() {
    python3 - $((port + 2)) "$1" <<'PY' &
import socket, sys
s = socket.socket(socket.AF_INET6)
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("::", int(sys.argv[1])))
s.listen()
open("listens", "w").close()
s.settimeout(60)
try:
    while True:
        c, _ = s.accept()
        c.sendall(sys.argv[2].encode())
        c.close()
except OSError:
    pass
PY
    listener=$!
    for _ in $(seq 100); do [ -e listens ] || sleep 0.1; done
}
silence() {
    kill $listener
    wait $listener 2>/dev/null
    rm -f listens
}
listen ""
ranks nccl 2 lanes
wrong "the port is taken" 1 "Address already in use; is another run there? set another MASTER_PORT" 2
wrong "... and the other rank" 1 "another program is on this port" 2
silence
listen "this is another program, which does not know what threefold is, and says a lot about it"
export TORCHELASTIC_USE_AGENT_STORE=True
ranks nccl 3 lanes && fine "torchrun's store is on the port, the next one is ours"
unset TORCHELASTIC_USE_AGENT_STORE
silence
cat >late.sh <<'SH'
[ -z "${LATE:-}" ] || sleep 1.5
exec ./nccl lanes
SH
hello="import socket; socket.create_connection(('localhost', $((port + 2))), 1).sendall(b'GET / HTTP/1.1' * 9)"
(for _ in $(seq 40); do ! python3 -c "$hello" 2>/dev/null || break; done) &
odd_rank=1 odd=LATE=1
loop_ranks 2 sh late.sh
if grep -q 'rank 0: a connection from .* is of another program.*: dropped$' out; then ok "a stranger is named"
else bad "a stranger is named: $(head -c 700 out)"; fi
sed -i '/rank 0: a connection from .*: dropped$/d' out
fine "a stranger comes to the port, before rank 1 does"
odd_rank=none
finish
