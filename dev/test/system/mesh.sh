# shellcheck shell=bash
# mesh.sh: runs of the trainer with several ranks, for the tests that source it, test_mesh.sh and others. MPIRUN is the
# mpirun that belongs to the build; train_gpt is built already. PRECISION=bf16: the trainers of $BUILD/bf16 and
# $BUILD/sanitized/bf16 instead.
#
# near: how far losses of two meshes may be apart, relative. float32: sums of at most 8192 terms in another order are
# off by 1e-7 of their size, a few times that after six updates; 1e-5 is what dev/test/unit/test_equivalence.c has.
# bf16: tensor ranks round partial results that one rank adds before it rounds, by u = 2^-8 at most, and sums of float32
# in another order turn some roundings. A loss is the mean of 256 rows with independent errors: u / 16. A gradient norm
# has no such mean, and may be off by NORM times as much, u / 2. A weight is off as its gradient's entries are, which
# went through four roundings: 4 u of the tensor's largest, where eps keeps AdamW from dividing an entry by itself. Over
# the four ranks of a CAAT-Net a sum is rounded after each of three additions, not of one: 6 u.
set -u
project=$PWD
build=$project/${BUILD:-build}
train=$project/train_gpt sanitized=$build/sanitized/train_gpt
near=1e-5 near_weights=1e-4 near_weights4=1e-4 eps=1e-5
if [ "${PRECISION:-fp32}" = bf16 ]; then
    train=$build/bf16/train_gpt sanitized=$build/sanitized/bf16/train_gpt
    near=2.4e-4 near_weights=1.6e-2 near_weights4=2.4e-2 eps=1e-3
    export NORM=8 VALUE_BYTES=2
fi
mpirun=$project/scripts/mpirun.sh
check_run=$project/dev/test/system/check_run.py
if [ "${MPIRUN-mpirun}" = "" ] || ! grep -q MPI_Init "$train"; then
    echo "left out: no MPI"
    echo "0 passed, 0 failed"
    exit 0
fi
export MPIRUN=${MPIRUN:-mpirun} ASAN_OPTIONS=detect_leaks=0 OMP_NUM_THREADS=1
work=$(mktemp -d)
building=""
. dev/test/system/checks.sh
clean() {
    kill_ranks
    [ -z "$building" ] || kill "$building" 2>/dev/null
    rm -rf "$work"
}
trap clean EXIT
cd "$work" || exit 1
. "$project/dev/test/system/ranks.sh"
program=$train
export OMPI_MCA_btl_vader_backing_directory=$work # not /dev/shm, where jobs that are killed leave their memory for ever

full() { [ -n "${LONG:-}" ]; }

# launch RANKS COMMAND...: its output to out and err, its exit status to $status, how long it took to $seconds.
launch() {
    started=$SECONDS
    timeout --foreground -k 5 240 "$mpirun" -np "$@" >out 2>err </dev/null
    status=$? seconds=$((SECONDS - started))
}

# trains MESH OPTIONS...: MESH is RANKS:OPTIONS; one rank is started without mpirun. Succeeds if the run does.
trains() {
    read -ra mesh_options <<<"${1#*:}"
    if [ "${1%%:*}" = 1 ]; then
        timeout 120 "$train" "${@:2}" >out 2>err </dev/null
        status=$?
    else
        launch "${1%%:*}" "$train" "${mesh_options[@]}" "${@:2}"
    fi
    [ $status = 0 ] && return
    bad "$*: exit status $status, stderr: $(head -c 600 err)"
    return 1
}

# ended STATUS WORDS WHAT: the launch ended with STATUS, soon, and the trainer printed one line, which has the words:
# the option, file or rank that is wrong
ended() {
    grep -a '^train_gpt: ' err >line
    if [ $status = "$1" ] && [ $seconds -le 100 ] && [ "$(wc -l <line)" = 1 ] && says "$2" line; then
        ok "$3 -> $(cat line)"
    else bad "$3: exit status $status (expected $1) after $seconds s, stderr (expected \"$2\"): $(head -c 900 err)"; fi
}

# refuses STATUS WORDS RANKS OPTIONS...: every rank finds what is wrong, and one says it
refuses() {
    launch "$3" "$train" "${@:4}"
    ended "$1" "$2" "$3 ranks, ${*:4}"
}

# named RANK: the launcher has said which one died; MPICH's says only that one has (and shows any one's process number)
named() { grep -aqi "rank $1\|BAD TERMINATION" err out; }

verify_py() { verify "$1" python3 "$check_run" "${@:2}"; }
bits() { # WHAT A B: log and checkpoint of two runs
    verify_py "$1: losses and norms, to the bit:" same "$2" "$3" 0
    check "$1: the checkpoint, byte for byte" "same_weights {$2,$3}/step_00000006"
}

seq 1 12000 | tr '\n' ' ' >text.txt
data=(--data text.txt)
model=(--layers 4 --hidden 32 --heads 4 --seq 32 --warmup 2)
batch=(--global-batch 8 --micro-batch 1)
small=("${model[@]}" "${batch[@]}" "${data[@]}")
quiet=(--eval-every 0 --sample-every 0)
short=("${small[@]}" "${quiet[@]}")
# --eps: AdamW divides by the size of the gradient, so that of an entry without a gradient it would make a step out of
# rounding alone.
run=("${small[@]}" --eps $eps --sample-every 0 --steps 6 --save-every 3 --eval-every 3 --eval-sequences 5)

# finish_ranks: no process is left, then finish
finish_ranks() {
    left=$(for p in /proc/[0-9]*; do
        case "$(readlink "$p/cwd") $(readlink "$p/exe")" in
        "$work"*bash) ;; # this one
        "$work"*) readlink "$p/exe" ;;
        esac
    done 2>/dev/null)
    check "no process is left behind" "[ -z '$left' ]"
    finish
}
