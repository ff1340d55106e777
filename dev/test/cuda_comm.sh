#!/bin/bash
# comm.h where there is a device, on the emulator: builds dev/test/cuda_comm.cu three times (MPI alone; MPI and NCCL; NCCL
# alone, that is dev/test/fake/nccl.h) and once more under the sanitizers, starts 1 to 4 ranks by mpirun or by a loop, as
# torchrun would, and then everything that can go wrong: ranks that die, ranks that do not find each other, orders that
# end in a deadlock. Whatever is wrong has to end soon, with one line that says why. MPIRUN is empty where there is no MPI.
set -u
project=$PWD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
export FAKE_NCCL_DIR=$work OMPI_MCA_btl_vader_backing_directory=$work
export CUDA_ON_CPU_THREADS=1 OMP_NUM_THREADS=1 ASAN_OPTIONS=detect_leaks=0
unset RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT TORCHELASTIC_USE_AGENT_STORE NCCL_HOSTID NCCL_MULTI_RANK_GPU_ENABLE
passed=0 failed=0
ok() { passed=$((passed + 1)) && echo "ok    $*"; }
bad() { failed=$((failed + 1)) && echo "FAIL  $*"; }

# ---- build
mpi_command=""
[ "${MPIRUN-mpirun}" = "" ] || mpi_command=$(${MPICC:-mpicc} -show 2>/dev/null)
words() { for word in $mpi_command; do case $word in $1) echo "$word" ;; esac; done; } # KIND: of the compiler's arguments
compile() { # PROGRAM FLAGS...
    ${CXX:-g++} -std=c++17 -O1 -Wall -Wextra -Werror -Wno-unknown-pragmas -pthread -DUSE_CUDA -DRENDEZVOUS_SECONDS=3 "${@:2}" \
        -x c++ "$project/dev/test/cuda_comm.cu" -x none -o "$1" $(words '-[Ll]*') -lm >"$1.said" 2>&1 && ok "builds $1" && return
    bad "builds $1: $(grep -m 3 'error\|warning' "$1.said")"
    exit 1
}
mpi="-DUSE_MPI $(words '-[ID]*')" nccl="-DUSE_NCCL -I$project/dev/test/fake" sanitized="-g -fsanitize=address,undefined -fno-sanitize-recover=all"
programs="nccl"
# shellcheck disable=SC2086
compile nccl $nccl
# shellcheck disable=SC2086
[ -z "$mpi_command" ] || { programs="mpi both nccl" && compile mpi $mpi && compile both $nccl $mpi; }
# shellcheck disable=SC2086
compile san_nccl $nccl $sanitized
# shellcheck disable=SC2086
[ -z "$mpi_command" ] || compile san_mpi $mpi $sanitized

# ---- start
port=$((20000 + $$ % 10000)) # each run its own
started() { seconds=$((SECONDS - begun)); }
# mpirun_ranks N PROGRAM...: output to out, the exit status to $status, how long it took to $seconds
mpirun_ranks() {
    begun=$SECONDS
    timeout --foreground -k 5 100 "$project/scripts/mpirun.sh" -np "$@" >out 2>&1 </dev/null
    status=$?
    started
}
# loop_ranks N PROGRAM...: without MPI; the status is the largest one. $but_rank: its variables are $but
loop_ranks() {
    local n=$1 rank pids=()
    shift
    begun=$SECONDS port=$((port + 2)) status=0
    : >out
    for ((rank = 0; rank < n; rank++)); do
        local but_it=""
        [ "${but_rank:-}" != "$rank" ] || but_it=$but
        # shellcheck disable=SC2086
        timeout -k 5 100 env RANK=$rank LOCAL_RANK=$rank WORLD_SIZE=$n MASTER_ADDR=localhost MASTER_PORT=$port \
            NCCL_MULTI_RANK_GPU_ENABLE=1 $but_it "$@" >>out 2>&1 </dev/null &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do
        wait "$pid"
        local one=$?
        [ $one -le $status ] || status=$one
    done
    started
}
ranks() { # PROGRAM N ARGUMENTS...
    local program=$1
    shift
    case $program in
    *nccl) loop_ranks "$1" "./$program" "${@:2}" ;;
    *both) NCCL_MULTI_RANK_GPU_ENABLE=1 mpirun_ranks "$1" "./$program" "${@:2}" ;;
    *) mpirun_ranks "$1" "./$program" "${@:2}" ;;
    esac
}

# ---- everything right
right() { # WHAT PROGRAM N ARGUMENTS...
    ranks "${@:2}"
    local last
    last=$(grep -a 'passed, [0-9]* failed$' out | tail -n 1)
    if [ $status = 0 ] && [ -n "$last" ]; then ok "$1: $last ($seconds s)"
    else bad "$1: exit status $status after $seconds s: $(grep -a '^FAIL\|error\|fake\|cuda_comm' out | head -n 5)"; fi
}
for program in $programs; do
    for n in 1 2 3 4; do right "$program, $n ranks" "$program" $n --short; done
done
right "nccl, 2 ranks, all of it" nccl 2
right "sanitized, NCCL alone, 3 ranks" san_nccl 3 --short
if [ -n "$mpi_command" ]; then
    right "sanitized, MPI alone, 2 ranks" san_mpi 2 --short
    mpirun_ranks 2 ./both --short
    if [ $status = 0 ] && grep -qa 'carried: "through host memory (ranks share a GPU)"' out; then ok "ranks that share a GPU: through the host"
    else bad "ranks that share a GPU: $(tail -n 3 out)"; fi
fi

# ---- something wrong
# wrong STATUS TEXT [LINES]: the last start has ended with STATUS, soon, and LINES lines of the program, one with TEXT
wrong() {
    local said
    said=$(grep -ac '^cuda_comm: ' out)
    if [ $status = "$1" ] && [ $seconds -le 12 ] && grep -aqF -- "$2" out && [ "$said" = "${3:-$said}" ]; then ok "$what -> $(grep -am 1 -F -- "$2" out)"
    else bad "$what: exit status $status (expected $1) after $seconds s, expected \"$2\", $3 line(s): $(head -c 700 out)"; fi
}
export FAKE_NCCL_SECONDS=2
for program in $programs; do
    what="$program: wrong arguments" && ranks $program 3 usage && wrong 2 "cuda_comm: the test says so" 1
    what="$program: the same error" && ranks $program 3 together && wrong 1 "cuda_comm: the test says so" 1
    what="$program: one rank alone is wrong" && ranks $program 3 lonely && wrong 2 "wrong arguments or files, which other ranks do not have" 1
    what="$program: a rank dies" && ranks $program 3 die && wrong 1 "cuda_comm: rank 2: the test says so" 1
    what="$program: two kinds of memory" && ranks $program 2 mixed && wrong 1 "one buffer is in host memory and one is not"
done
what="a rank is killed" && ranks nccl 3 kill && wrong 137 "rank 2 has ended without a word" 1
what="a message to oneself is never sent" && ranks nccl 2 alone && wrong 1 "the other half of a message to oneself has not been started"
# What NCCL would not report; here the fake does, with status 70.
what="receives on one stream" && ranks nccl 2 nolanes && wrong 70 "a deadlock"
what="receives in the wrong order" && ranks nccl 2 swapped && wrong 70 "but rank 0: message of 8 elements"
what="a message of another length" && ranks nccl 2 length && wrong 70 "but rank 0: message of 17 elements"
export CUDA_DEVICE_MAX_CONNECTIONS=1
what="one queue for all streams" && ranks nccl 2 lanes && wrong 2 "CUDA_DEVICE_MAX_CONNECTIONS is 1" 1
unset CUDA_DEVICE_MAX_CONNECTIONS
fine() { if [ $status = 0 ] && [ ! -s out ]; then ok "$what ($seconds s)"; else bad "$what: exit status $status: $(head -c 700 out)"; fi; }
what="lanes" && ranks nccl 2 lanes && fine

# ---- finding each other
# but WHAT RANK VARIABLES STATUS TEXT LINES: one of 3 ranks has other variables
but() { what=$1 but_rank=$2 but=$3 && ranks nccl 3 lanes && unset but_rank && wrong "$4" "$5" "$6"; }
but "ranks that share a GPU, one of them unwillingly" 2 "NCCL_MULTI_RANK_GPU_ENABLE=0" 2 "ranks 0 and 1 share GPU" 1
but "another number of ranks" 2 "WORLD_SIZE=4" 1 "rank 2 says that there are 4 ranks, rank 0 that there are 3" 3
but "a rank twice" 2 "RANK=1" 1 "two processes say that they are rank 1" 3
but "a rank too many" 2 "RANK=3" 1 "RANK is 3 and WORLD_SIZE is 3: ranks count from 0 to 2" 3
but "no rank" 2 "RANK=two" 1 'RANK is "two", not a number from 0 on' 3
but "no local rank" 2 "LOCAL_RANK=" 1 'LOCAL_RANK is "", not a number' 3
but "no master" 2 "MASTER_ADDR=" 1 "MASTER_ADDR is not: it names the machine of rank 0" 3
but "a wrong port" 2 "MASTER_PORT=1" 1 "cannot reach rank 0 at localhost:1 within 3 s: Connection refused" 3
but "a port that is none" 2 "MASTER_PORT=70000" 1 "ports end at 65535" 3
but "no such machine" 2 "MASTER_ADDR=no.such.machine.invalid" 1 "cannot reach rank 0 at no.such.machine.invalid" 3
but "rank 0 is missing" 0 "WORLD_SIZE=1" 1 "cannot reach rank 0 at localhost" 2

# listen PORT ANSWER: another program on a port, which says something to who comes
listen() {
    python3 - "$1" "$2" <<'PY' &
import socket, sys
s = socket.socket(socket.AF_INET6)
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("::", int(sys.argv[1])))
s.listen()
s.settimeout(8)
try:
    while True:
        c, _ = s.accept()
        c.sendall(sys.argv[2].encode())
        c.close()
except OSError:
    pass
PY
    listener=$!
    sleep 0.5
}
listen $((port + 2)) ""
what="the port is taken" && ranks nccl 2 lanes && wrong 1 "Address already in use; is another run there? set another MASTER_PORT" 2
grep -aqF "another program is on this port" out && ok "and the other rank says: $(grep -a 'another program' out)" || bad "the other rank: $(cat out)"
kill $listener
wait $listener 2>/dev/null
listen $((port + 2)) "this is another program, which does not know what threefold is, and says a lot about it"
export TORCHELASTIC_USE_AGENT_STORE=True
what="torchrun's store is on the port, the next one is ours" && ranks nccl 3 lanes && fine
unset TORCHELASTIC_USE_AGENT_STORE
kill $listener
wait $listener 2>/dev/null
# A stranger comes to rank 0, before rank 1 does.
cat >late.sh <<'SH'
[ -z "${LATE:-}" ] || sleep 1.5
exec ./nccl lanes
SH
(for _ in $(seq 40); do
    python3 -c "import socket; socket.create_connection(('localhost', $((port + 2))), 1).sendall(b'GET / HTTP/1.1' * 9)" 2>/dev/null && break
done) &
stranger=$!
what="a stranger comes to the port" && but_rank=1 but="LATE=1" && loop_ranks 2 sh late.sh && unset but_rank && fine
wait $stranger
# srun's environment
cat >srun.sh <<'SH'
export SLURM_PROCID=$RANK SLURM_LOCALID=$LOCAL_RANK SLURM_STEP_NUM_TASKS=$WORLD_SIZE
unset RANK LOCAL_RANK WORLD_SIZE
exec ./nccl --short
SH
loop_ranks 2 sh srun.sh
if [ $status = 0 ] && grep -qa ' 0 failed' out; then ok "srun: $(tail -n 1 out)"; else bad "srun: status $status: $(tail -n 3 out)"; fi
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
