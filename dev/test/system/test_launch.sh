#!/bin/bash
# What starts the trainer: scripts/mpirun.sh, run_slurm.sh, quickstart.sh, download_data.sh; the part of the Makefile
# that finds MPI; and dev/test/run.sh. All in a copy, beside stand-ins: programs that only note how they were called.
# Then with every MPI that is installed, real ranks. Last line: "N passed, N failed".
# shellcheck disable=SC2016,SC2046,SC2086  # what the stand-ins expand; lists of words
set -u
project=$PWD
. dev/test/system/checks.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset TIER OMP_NUM_THREADS SLURM_JOB_ID SLURM_MPI_TYPE SLURM_CPUS_PER_TASK MPIRUN MPICC MPI MAKEFLAGS MFLAGS MAKELEVEL \
    ASAN_OPTIONS SANITIZED_TESTS LONG
export called=$work/called fake=$work/fake project_copy=$work/project
context() { head -c 400 "$work/out" "$work/err"; }

# run STATUS [VARIABLE=VALUE...] COMMAND...: its output goes to out and err; its exit status has to be STATUS
run() {
    rm -f "$called"
    timeout 240 env "${@:2}" >"$work/out" 2>"$work/err" </dev/null
    got=$?
    [ $got = "$1" ] || bad "${*:2}: exit status $got, expected $1: $(context)"
}

# calls STATUS CALLS [VARIABLE=VALUE...] COMMAND...: and the stand-ins get exactly these CALLS, with "/" between them
calls() {
    run "$1" "${@:3}"
    is "${*:3}" "$2" "$(paste -s -d / "$called" 2>/dev/null)"
}

# refuses STATUS WORDS [VARIABLE=VALUE...] COMMAND...: and it says one line, which has WORDS, and starts nothing
refuses() {
    run "$1" "${@:3}"
    check "${*:3} -> $(cat "$work/err")" "[ \$(wc -l <$work/err) = 1 ] && [ ! -s $work/out ] && [ ! -e $called ] &&
        grep -qF -- '$2' $work/err"
}

# ---- the copy, and the stand-ins
mkdir -p "$fake" "$project_copy"/dev/test/{unit,system,cuda}
cp -r "$project/scripts" "$project_copy"
cp "$project/dev/test/run.sh" "$project_copy/dev/test"
cd "$project_copy" || exit 1
script() { printf '#!/bin/sh\n%s\n' "$2" >"$1" && chmod +x "$1"; } # FILE TEXT

for kind in "open:mpirun (Open MPI) 5.0.3" "orte:orterun (OpenRTE) 4.1.4"; do
    script "$fake/mpirun.${kind%%:*}" "
        if [ \"\$1\" = --version ]; then echo '${kind#*:}'; else echo \"\$*\" >\"\$called\"; fi"
done
script "$fake/mpirun" 'printf "<%s>" "$@" >"$called"' # another one's, such as MPICH's
script "$fake/mpirun.once" '[ "$1" != --version ] || exit 0
    cut -d " " -f 4,5 /proc/$$/stat >"$called"
    shift 2; exec "$@"' # runs one rank
script "$fake/id" 'echo "${FAKE_UID:-1000}"'
script "$fake/ldd" 'echo "libm.so.6 ${FAKE_LIBRARY:-libmpi.so.40}"'
script "$fake/srun" '[ "$*" != --mpi=list ] || { printf "%b\n" \
        "plugin types are...\n\tnone${FAKE_TYPES-\n\tpmi2\n\tpmix\nspecific pmix plugin versions: pmix_v4}" >&2
        exit 0; }
    echo "$OMP_NUM_THREADS $*" >"$called"
    [ -z "${FAKE_WAITS:-}" ] || { trap "echo USR1 >>$called" USR1; touch "$called.there"; sleep 1; sleep 0.2; }
    exit "${FAKE_STATUS:-0}"'
script "$fake/scontrol" 'echo "scontrol $*" >>"$called"; exit "${FAKE_SCONTROL:-0}"'
script "$fake/nvidia-smi" 'for _ in $(seq "${GPUS:-1}"); do echo "A GPU"; done'
# copies what is not there yet
script "$fake/curl" 'for url; do :; done
    while [ "$1" != --output ]; do shift; done
    [ -e "$2" ] || : >"$2"
    tail -c "+$(($(wc -c <"$2") + 1))" "${url#file://}" >>"$2"'
script train_gpt "# MPI_Init: a trainer that was built with MPI"
export PATH=$fake:$PATH
open="--bind-to none --map-by slot:OVERSUBSCRIBE"

# ---- mpirun.sh
calls 0 "" scripts/mpirun.sh --help
calls 2 "" scripts/mpirun.sh
calls 0 "$open -np 3 a b c" MPIRUN=mpirun.open scripts/mpirun.sh -np 3 a "b c"
calls 0 "$open --allow-run-as-root -np 3 a" FAKE_UID=0 "MPIRUN=$fake/mpirun.orte" scripts/mpirun.sh -np 3 a
calls 0 "<-np><a b><*><>" FAKE_UID=0 scripts/mpirun.sh -np "a b" "*" ""
refuses 1 "mpirun.none" MPIRUN=mpirun.none scripts/mpirun.sh -np 3 a
rm "$fake/mpirun"

# ---- run_slurm.sh: sbatch would run a copy of it, in the folder in which sbatch was typed
slurm=$work/slurm_script
cp scripts/run_slurm.sh "$slurm"
calls 0 "" scripts/run_slurm.sh --help
calls 2 "" scripts/run_slurm.sh
is "all #SBATCH lines come before the first command" "$(grep -c '^#SBATCH' scripts/run_slurm.sh)" \
    "$(sed -n '/^[^#]/q; p' scripts/run_slurm.sh | grep -c '^#SBATCH --[a-z-]*\(=[^ ]*\|\)$')"
export SLURM_JOB_ID=17 SLURM_CPUS_PER_TASK=8
end="--cpus-per-task=8 --kill-on-bad-exit=1 ./train_gpt" pmix="8 --mpi=pmix" # pmix: 8 threads
calls 0 "$pmix $end --tp 2 a b" "$slurm" --tp 2 "a b"
calls 0 "8 --mpi=pmi2 $end" FAKE_LIBRARY=libmpich.so.12 "$slurm"
calls 0 "$pmix $end" FAKE_LIBRARY=libmpich.so.12 FAKE_TYPES='\n\tpmix' "$slurm"
calls 0 "8 --mpi=pmi2 $end" FAKE_TYPES='\n\tcray_shasta\n\tpmi2' "$slurm"
calls 0 "$pmix $end" FAKE_TYPES=', pmi2, pmix, pmix_v3' "$slurm" # an old list
calls 0 "8 $end" FAKE_TYPES='\n\tpmix_v9' "$slurm"
calls 0 "8 --mpi=openmpi $end" SLURM_MPI_TYPE=openmpi "$slurm"
calls 0 "3 --mpi=pmix $end" OMP_NUM_THREADS=3 "$slurm"
calls 0 "1 --mpi=pmix ${end/=8/=1}" -u SLURM_CPUS_PER_TASK "$slurm"
# Stopped and saved: into the queue again, to be resumed.
saved="FAKE_STATUS=75" again="scontrol requeue 17" begun=SLURM_RESTART_COUNT
calls 75 "$pmix $end --out r/$again" $saved "$slurm" --out r
calls 75 "$pmix $end --tp 2 --out=r/$again" $saved "$slurm" --tp 2 --out=r
calls 75 "$pmix $end --tp 2" $saved "$slurm" --tp 2
calls 1 "$pmix $end --out r" FAKE_STATUS=1 "$slurm" --out r
calls 75 "$pmix $end --resume --out r/$again" $saved $begun=1 "$slurm" --resume --out r
calls 0 "$pmix $end --tp 2" $begun=1 "$slurm" --tp 2
calls 75 "$pmix $end --out r --resume/$again" $saved $begun=99 "$slurm" --out r
calls 75 "$pmix $end --out r --resume" $saved $begun=2 REQUEUES=2 "$slurm" --out r
calls 75 "$pmix $end --out r/$again" $saved FAKE_SCONTROL=1 "$slurm" --out r
FAKE_WAITS=1 FAKE_STATUS=75 "$slurm" --out r >"$work/out" 2>"$work/err" &
job=$!
for _ in $(seq 2000); do [ ! -e "$called.there" ] || break; sleep 0.05; done
kill -TERM $job
wait $job
is "scancel: saves, and is not put into the queue again, status 75" "75 $pmix $end --out r/USR1" \
    "$? $(paste -s -d / "$called")"
cd "$work" || exit 1
refuses 1 "there is no $work/train_gpt" ./slurm_script
script train_gpt "# a trainer without"
refuses 1 "without MPI" ./slurm_script
unset SLURM_JOB_ID SLURM_CPUS_PER_TASK
cd "$project_copy" || exit 1

# ---- download_data.sh: files of known sizes, and what says itself how long it is; after an interruption it goes on
net=$work/net/openai-community/gpt2/resolve/main
mkdir -p "$net"
for name in config generation_config tokenizer tokenizer_config; do echo "{}" >"$net/$name.json"; done
header='{"a":{"dtype":"F32","shape":[3],"data_offsets":[4,16]},"b":{"dtype":"F32","shape":[1],"data_offsets": [0, 4]}}'
# gpt2 STATUS VALUES: fetches it, where the net's weights have these VALUES after their header
gpt2() {
    printf '%b%s%s' "\\0$(printf %o ${#header})\\0\\0\\0\\0\\0\\0\\0" "$header" "$2" >"$net/model.safetensors"
    run "$1" HF_ENDPOINT="file://$work/net" scripts/download_data.sh gpt2 "$work/gpt2"
}
weights=model.safetensors same="cmp $net/model.safetensors $work/gpt2/model.safetensors"
gpt2 0 16.bytes.of.two.
check "download_data.sh gpt2: all files are there" \
    "$same && [ \"\$(find $work/gpt2 -type f | wc -l)\" = 5 ] && grep -q -- '--init .*gpt2. --generate' $work/out"
head -c 50 "$net/$weights" >"$work/gpt2/$weights.part" && rm "$work/gpt2/$weights"
gpt2 0 16.bytes.of.two.
check "    it goes on after an interruption" "$same"
rm "$work/gpt2/$weights"
gpt2 1 17.bytes.of.three
check "    refused: $(cat "$work/err")" "[ ! -e $work/gpt2/$weights ] && [ ! -e $work/gpt2/$weights.part ]"
gpt2 0 16.bytes.of.two.
: >"$net/config.json" && rm "$work/gpt2/config.json"
gpt2 1 16.bytes.of.two.
check "    refused, too: an empty config.json" "[ ! -e $work/gpt2/config.json ]"
rm "$fake/curl"

# ---- quickstart.sh: without MPI if that cannot be installed, not without a compiler
script scripts/install.sh 'case " $* " in *" $CANNOT:"*) exit 1 ;; esac
    echo "installed $*" |
        sed -n "s/ .*\(mpirun:[^ ]*\).*/ \1/p; s/ make:make gcc:gcc.*libc6-dev$/ needed/p" >>"$called"'
script scripts/download_data.sh 'exit "$NO_NET"'
script train_gpt 'echo "trained $*" >>"$called"'
script "$fake/make" 'echo "made${3:+ $3}" >>"$called"'
text="--data data/tinyshakespeare/input.txt "
# quick STATUS CALLS CANNOT NO_NET OPTIONS: what cannot be installed, whether there is no net
quick() {
    calls "$1" "$2" CANNOT="$3" NO_NET="$4" scripts/quickstart.sh $5
}
mpi="installed mpirun:openmpi-bin/made/trained"
quick 0 "$mpi --steps 2/made run_line" nothing 1 "--steps 2"
for own in --data=x "--out r --resume"; do quick 0 "$mpi $own/made run_line" nothing 0 "$own"; done
quick 0 "installed needed/made/trained ${text% }/made run_line" mpicc 0 ""
quick 1 "" gcc 0 ""
rm "$fake/make"

# ---- how the Makefile finds MPI
cd "$project" || exit 1
script "$fake/mpicc.wrong" 'echo "gcc -I/none -O9 -L/none -lnothing_of_this_name"'
help=(make -s --no-print-directory help)
refuses 2 "MPI=maybe" "${help[@]}" MPI=maybe
would() { env -u MPIRUN make -n BUILD="$work/build" "$@" 2>&1; } # VARIABLES TARGET: the commands that make would run
# has yes|no PATTERN VARIABLES TARGET: whether make would run a command like that
has() {
    found=no
    ! would "${@:3}" | grep -q -- "$2" || found=yes
    is "make ${*:3}, whether it has '$2'" "$1" $found
}
trainer=(-W train_gpt.cu train_gpt) gpu=(NVCC=true cublaslt=lib/libcublasLt.so GPU_ARCH=90)
has no 'USE_MPI\|lmpi' MPI=no "${trainer[@]}"
has no 'USE_MPI\|lnothing' MPICC=mpicc.wrong "${trainer[@]}"
has no USE_MPI MPICC=mpicc.none "${trainer[@]}"
has yes ' MPIRUN="" ' MPI=no test
has yes 'fsanitize.* -o train_gpt' DEVICE=cpu DEBUG=1 "${trainer[@]}"
has yes '^echo "run: .*\./train_gpt' DEVICE=cpu all
has yes '-DUSE_CUDA.* -o train_gpt ' "${gpu[@]}" "${trainer[@]}"
has no '-DUSE_CUDA.* -o train_gpt ' "${gpu[@]}" -W train_gpt.cu build_tests
has yes '-DUSE_CUDA.* -o .*/emulated/bf16/test_gpt' DEVICE=emulated -W test_gpt.c test_gpt
for line in "1 GPU:${gpu[*]} MPIRUN=mpirun.open:./train_gpt" \
    "7 GPUs:${gpu[*]} MPIRUN=mpirun.open:MPIRUN=mpirun.open scripts/mpirun.sh -np 4 ./train_gpt" \
    "no MPI:DEVICE=cpu MPI=no:./train_gpt (one process: there is no MPI)" \
    "no mpirun:DEVICE=cpu MPIRUN=mpirun.none:./train_gpt (one process: there is no mpirun.none)"; do
    IFS=: read -r what variables expected <<<"$line"
    run 0 -u MPIRUN GPUS="${what%% *}" make -s $variables run_line
    is "make run_line, $what" "run: $expected" "$(cat "$work/out")"
done
rm "$fake/nvidia-smi"

# ---- with every MPI that is here: more real ranks than cores
rm "$fake/id" "$fake/ldd"
script "$work/rank" 'echo "${OMPI_COMM_WORLD_RANK:-$PMI_RANK} of ${OMPI_COMM_WORLD_SIZE:-$PMI_SIZE}: <$1>"'
kinds=""
for compiler in mpicc.openmpi mpicc.mpich mpicc; do
    launcher=mpirun${compiler#mpicc}
    { command -v $compiler && command -v "$launcher"; } >/dev/null || continue
    [ $compiler != mpicc ] || [ -z "$kinds" ] || continue # one of the two above
    run 0 -u MPIRUN "${help[@]}" MPICC=$compiler
    kind="^MPI  *\(Open MPI\|MPICH\) [0-9.]*: as many ranks as mpirun starts$"
    check "make help MPICC=$compiler" "grep -q '$kind' $work/out"
    grep -q "$kind" "$work/out" || continue
    kinds="$kinds $launcher"
    has yes ' -DUSE_MPI.* -I.*mpi.* -lmpi' MPICC=$compiler "${trainer[@]}"
    script "$fake/mpicc.more" "echo \$($compiler -show) -O9 -std=c89 -DMORE -Wl,-O1 -pthread"
    has yes ' -DMORE .* -Wl,-O1 .*-pthread ' MPICC=mpicc.more "${trainer[@]}"
    has no '-O9\|c89' MPICC=mpicc.more "${trainer[@]}"
    has yes " MPIRUN=\"$launcher\" " MPICC=$compiler test
    ranks=$(($(nproc) < 32 ? $(nproc) + 2 : 34)) # each needs a part of /dev/shm
    run 0 MPIRUN="$launcher" scripts/mpirun.sh -np $ranks "$work/rank" "a b"
    is "$launcher: $ranks ranks" "$(seq -f "%g of $ranks: <a b>" 0 $((ranks - 1)) | sort)" "$(sort "$work/out")"
done
[ -n "$kinds" ] || echo "left out: real ranks, there is no MPI here"

# ---- dev/test/run.sh
cd "$project_copy" || exit 1
# Every program that run.sh calls has a stand-in here.
sed "s|\$system|dev/test/system|g" dev/test/run.sh | grep -oE '(dev|docs)/[a-z_/]+\.(sh|py)' | while read -r program; do
    mkdir -p "${program%/*}" && script "$program" "echo '1 passed, 0 failed'"
done
mkdir -p build/sanitized
# test_program NAME RANKS TEXT: a test program, and its source as far as run.sh reads it
test_program() {
    printf '/*\nA test.\n%b\n*/\n/* ranks: 7 */\n' "$2" >"dev/test/unit/$1.c"
    script "build/$1" "$3"
    script "build/sanitized/$1" "$3"
}
# tests PLAIN SANITIZED: run.sh with these programs fails; lines: its lines of them, without times
tests() {
    run 1 BUILD=build FUZZERS= GPU_TESTS= TIER=full MPIRUN=mpirun.once PLAIN="$1" SANITIZED="$2" dev/test/run.sh
}
lines() {
    sed -n "s/  *[0-9]* s  *[0-9]* s of CPU$//; s/  */ /g; /^test_.* [0-9]* passed/!d; / in bf16 /!p" "$work/out" |
        LC_ALL=C sort
}
test_program test_many "ranks: 1 3 8\nranks sanitized: 1 2" "echo '9 passed, 9 failed'; echo '5 passed, 0 failed'"
test_program test_bad "ranks: 2" "echo 'FAIL  the third'; echo '2 passed, 3 failed'; exit 1"
test_program test_crash "ranks: 2" "echo '4 passed, 0 failed'; exit 139"
test_program test_empty "ranks: 2" "true"
test_program test_luck "ranks: 2" "[ -e $work/tried ] && echo '3 passed, 0 failed' && exit; : >$work/tried; exit 1"
tests "test_many test_bad test_crash test_empty test_luck" test_many
is "run.sh: ranks, counts; a crash after the last line, or no test, is a failure; a second try may pass" \
    "test_bad, 2 ranks 2 passed 3 failed
test_crash, 2 ranks 4 passed 1 failed
test_empty, 2 ranks 0 passed 1 failed
test_luck, 2 ranks 3 passed 0 failed
test_many 5 passed 0 failed
test_many sanitized 5 passed 0 failed
test_many sanitized, 2 ranks 5 passed 0 failed
test_many, 3 ranks 5 passed 0 failed
test_many, 8 ranks 5 passed 0 failed" "$(lines)"
is "the failures are added up, and shown twice" "5 failed 2" \
    "$(tail -n 1 "$work/out" | grep -o '[0-9]* failed') $(grep -c '^FAIL  the third' "$work/out")"
# Whether the ranks of a real mpirun stay behind when timeout signals it twice depends on luck; this does not.
check "mpirun is in no process group that timeout made (parent, group: $(cat "$called"))" \
    "[ $(sed 's/ / != /' "$called") ]"
test_program test_waits "ranks: 2" "exec sleep 1000"
RANKS_TIMEOUT=1 tests test_waits ""
is "ranks that wait for ever are a failure" "test_waits, 2 ranks 0 passed 1 failed" "$(lines)"

if command -v shellcheck >/dev/null; then
    check "shellcheck finds nothing" \
        "cd '$project' && shellcheck -x scripts/*.sh dev/test/run.sh dev/test/system/test_launch.sh"
fi
finish
