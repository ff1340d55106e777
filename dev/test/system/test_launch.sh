#!/bin/bash
# What starts the trainer: scripts/mpirun.sh, run_slurm.sh; the part of the Makefile that finds MPI; and
# dev/test/run.sh. All in a copy, beside programs that only say how they were called: two kinds of mpirun, srun, id,
# ldd. Then with every MPI that is installed, real ranks.
set -u
project=$PWD
. dev/test/system/checks.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset TIER OMP_NUM_THREADS SLURM_JOB_ID SLURM_MPI_TYPE SLURM_CPUS_PER_TASK MPIRUN MPICC MPI MAKEFLAGS MFLAGS MAKELEVEL \
    ASAN_OPTIONS SANITIZED_TESTS LONG
export called=$work/called fake=$work/fake project_copy=$work/project

# run STATUS COMMAND...: runs it, output to out and err; its exit status has to be STATUS
run() {
    expected=$1
    shift
    rm -f "$called"
    timeout 240 "$@" >"$work/out" 2>"$work/err" </dev/null
    got=$?
    [ $got = "$expected" ] || bad "$*: exit status $got, expected $expected: $(head -c 400 "$work/out" "$work/err")"
}

# refuses STATUS TEXT COMMAND...: exits with STATUS, says one line that has TEXT, and starts nothing
refuses() {
    text=$2
    run "$1" "${@:3}"
    if [ "$(wc -l <"$work/err")" = 1 ] && [ ! -s "$work/out" ] && [ ! -e "$called" ] && grep -qF -- "$text" "$work/err"
    then ok "${*:3} -> $(cat "$work/err")"
    else bad "${*:3}: expected \"$text\", found: $(head -c 400 "$work/err" "$work/out" "$called" 2>/dev/null)"; fi
}

# starts WHAT ARGUMENTS COMMAND...: the mpirun or srun that COMMAND calls gets exactly ARGUMENTS
starts() {
    run 0 "${@:3}"
    is "$1" "$2" "$(cat "$called" 2>/dev/null)"
}

# explains SCRIPT TEXT: --help prints how it is used, and so does no argument, with status 2
explains() {
    run 0 "scripts/$1" --help
    check "$1 --help explains it" "grep -qF -- '$2' $work/out && ! grep -q '^# \|set -eu' $work/out"
    run 2 "scripts/$1"
    check "$1 alone explains it, status 2" "grep -qF -- '$2' $work/out && [ ! -e $called ]"
}

# ---- the copy, and the programs that say how they were called
mkdir -p "$fake" "$project_copy"/dev/test/{unit,system,cuda}
cp -r "$project/scripts" "$project_copy"
cp "$project/dev/test/run.sh" "$project_copy/dev/test"
cd "$project_copy" || exit 1
script() { printf '#!/bin/sh\n%s\n' "$2" >"$1" && chmod +x "$1"; } # FILE TEXT

for kind in "fake4:mpirun (Open MPI) 4.1.4" "fake5:mpirun (Open MPI) 5.0.3" "fake_orte:orterun (OpenRTE) 4.1.4" \
    "fake_mpich:HYDRA build details: Version: 4.0.2" \
    "fake_intel:Intel(R) MPI Library for Linux* OS, Version 2021.11"; do
    script "$fake/mpirun.${kind%%:*}" "
        if [ \"\$1\" = --version ]; then echo '${kind#*:}'; else echo \"\$*\" >\"\$called\"; fi"
done
# shellcheck disable=SC2016  # for the scripts to expand
{
    script "$fake/id" 'echo "${FAKE_UID:-1000}"'
    script "$fake/ldd" 'echo "libm.so.6 ${FAKE_LIBRARY:-libmpi.so.40}"'
    script "$fake/srun" '[ "$*" != --mpi=list ] || { printf "%b\n" \
            "plugin types are...\n\tnone${FAKE_TYPES-\n\tpmi2\n\tpmix\nspecific pmix plugin versions: pmix_v4}" >&2
            exit 0; }
        echo "OMP_NUM_THREADS=$OMP_NUM_THREADS $*" >"$called"'
    script "$fake/arguments" 'printf "<%s>" "$@" >"$called"'
    script "$fake/mpirun.exec" 'shift; [ $# = 0 ] || exec "$@"'
    script "$fake/mpirun.once" '[ "$1" != --version ] || exit 0
        echo "FAKE mpirun $* <$(readlink /proc/$$/fd/0)"; cut -d " " -f 4,5 /proc/$$/stat >"$called"
        shift 2; exec "$@"' # runs one rank
}
trainer="# MPI_Init: a trainer that was built with MPI"
script train_gpt "$trainer"
export PATH=$fake:$PATH
open="--bind-to none --map-by slot:OVERSUBSCRIBE"

# ---- mpirun.sh
explains mpirun.sh "scripts/mpirun.sh [OPTIONS] PROGRAM"
for kind in "fake4:$open " "fake5:$open " "fake_orte:$open " fake_mpich: fake_intel:; do
    export MPIRUN=mpirun.${kind%%:*}
    starts "mpirun.sh, $MPIRUN" "${kind#*:}-np 3 a b c" scripts/mpirun.sh -np 3 a "b c"
    root=${kind#*:}
    root=${root:+$root--allow-run-as-root }
    starts "mpirun.sh, $MPIRUN, root" "${root}-np 3 a" env FAKE_UID=0 scripts/mpirun.sh -np 3 a
done
unset MPIRUN
cp "$fake/mpirun.fake_mpich" "$fake/mpirun"
starts "mpirun.sh takes the mpirun of PATH" "-np 3 a" scripts/mpirun.sh -np 3 a
starts "mpirun.sh, a full path" "$open -np 3 a" env "MPIRUN=$fake/mpirun.fake4" scripts/mpirun.sh -np 3 a
refuses 1 "there is no mpirun.none here: install MPI" env MPIRUN=mpirun.none scripts/mpirun.sh -np 3 a
starts "mpirun.sh keeps words together" "<-np><a b><*><>" env MPIRUN=mpirun.exec scripts/mpirun.sh -x arguments \
    -np "a b" "*" ""

# ---- run_slurm.sh: sbatch would run a copy of it, in the folder in which sbatch was typed
cp scripts/run_slurm.sh "$work/slurm_script"
explains run_slurm.sh "sbatch scripts/run_slurm.sh [OPTIONS]"
is "all #SBATCH lines come before the first command" "$(grep -c '^#SBATCH' scripts/run_slurm.sh)" \
    "$(sed -n '/^[^#]/q; p' scripts/run_slurm.sh | grep -c '^#SBATCH --[a-z-]*\(=[^ ]*\|\)$')"
run 2 scripts/run_slurm.sh --tp 2
export SLURM_JOB_ID=17 SLURM_CPUS_PER_TASK=8
end="--cpus-per-task=8 --kill-on-bad-exit=1 ./train_gpt"
starts "run_slurm.sh" "OMP_NUM_THREADS=8 --mpi=pmix $end --tp 2 a b" "$work/slurm_script" --tp 2 "a b"
# the type of MPI, threads | the environment
while IFS='|' read -r expected settings; do
    # shellcheck disable=SC2086
    starts "run_slurm.sh, $settings" "OMP_NUM_THREADS=$expected" env $settings "$work/slurm_script"
done <<END
8 --mpi=pmi2 $end|FAKE_LIBRARY=libmpich.so.12
8 --mpi=pmix $end|FAKE_LIBRARY=libmpich.so.12 FAKE_TYPES=\\n\\tpmix
8 --mpi=pmi2 $end|FAKE_TYPES=\\n\\tcray_shasta\\n\\tpmi2
8 --mpi=pmix $end|FAKE_TYPES=,\\tpmi2,\\tpmix,\\tpmix_v3
8 $end|FAKE_TYPES=\\n\\tpmix_v9
8 --mpi=openmpi $end|SLURM_MPI_TYPE=openmpi
3 --mpi=pmix $end|OMP_NUM_THREADS=3
1 --mpi=pmix ${end/=8/=1}|SLURM_CPUS_PER_TASK=
END
# Stopped and saved: into the queue again. The fake srun ends with $FAKE_STATUS, the fake scontrol says how it was
# called.
cp "$fake/srun" "$work/srun"
# shellcheck disable=SC2016
{
    script "$fake/srun" '[ "$*" != --mpi=list ] || exit 0
        echo "${*#*train_gpt}" >"$called"
        [ -z "${FAKE_WAITS:-}" ] || { trap "echo USR1 >>$called" USR1; touch "$called.there"; sleep 1; sleep 0.2; }
        exit "${FAKE_STATUS:-0}"'
    script "$fake/scontrol" 'echo "scontrol $*" >>"$called"; exit "${FAKE_SCONTROL:-0}"'
}
# the status | srun's options, and calls | the environment | options
while IFS='|' read -r status calls settings options; do
    # shellcheck disable=SC2086
    run "$status" env $settings "$work/slurm_script" $options
    is "run_slurm.sh $options, $settings" "$calls" "$(sed 's/^ *//' "$called" | paste -s -d /)"
done <<END
75|--out r/scontrol requeue 17|FAKE_STATUS=75|--out r
75|--tp 2 --out=r/scontrol requeue 17|FAKE_STATUS=75|--tp 2 --out=r
75|--tp 2|FAKE_STATUS=75|--tp 2
0|--out r|FAKE_STATUS=0|--out r
1|--out r|FAKE_STATUS=1|--out r
2|--out r|FAKE_STATUS=2|--out r
75|--out r --resume/scontrol requeue 17|FAKE_STATUS=75 SLURM_RESTART_COUNT=1|--out r
75|--resume --out r/scontrol requeue 17|FAKE_STATUS=75 SLURM_RESTART_COUNT=1|--resume --out r
0|--tp 2|SLURM_RESTART_COUNT=1|--tp 2
75|--out r --resume/scontrol requeue 17|FAKE_STATUS=75 SLURM_RESTART_COUNT=99|--out r
75|--out r --resume|FAKE_STATUS=75 SLURM_RESTART_COUNT=100|--out r
75|--out r --resume|FAKE_STATUS=75 SLURM_RESTART_COUNT=2 REQUEUES=2|--out r
75|--out r/scontrol requeue 17|FAKE_STATUS=75 FAKE_SCONTROL=1|--out r
END
rm -f "$called.there"
FAKE_WAITS=1 FAKE_STATUS=75 "$work/slurm_script" --out r >"$work/out" 2>"$work/err" &
job=$!
for _ in $(seq 2000); do [ ! -e "$called.there" ] || break; sleep 0.05; done
kill -TERM $job
wait $job
is "run_slurm.sh, scancel: saves, and is not put into the queue again, status 75" "75 --out r/USR1" \
    "$? $(sed 's/^ *//' "$called" | paste -s -d /)"
mv "$work/srun" "$fake/srun"
run 0 "$work/slurm_script" --help
check "--help inside a job starts nothing" "[ ! -e $called ] && [ ! -s $work/err ]"
cd "$work" || exit 1
refuses 1 "there is no $work/train_gpt: type make and then sbatch in the project's folder" ./slurm_script
script train_gpt "# a trainer without"
refuses 1 "was built without MPI" ./slurm_script
unset SLURM_JOB_ID SLURM_CPUS_PER_TASK
cd "$project_copy" || exit 1

# ---- quickstart.sh: without MPI if that cannot be installed, not without a compiler
mkdir "$work/quick" && cp -r scripts train_gpt "$work/quick"
# shellcheck disable=SC2016
{
    script "$work/quick/scripts/install.sh" 'case " $* " in *" $CANNOT:"*) exit 1 ;; esac; echo "installed $*"'
    script "$work/quick/train_gpt" 'echo "trained with $*"'
    script "$fake/make" 'echo "made${3:+ $3}"'
}
steps() {
    sed -n 's/^installed .*\(mpirun:[^ ]*\).*/all \1/p; s/^installed make:make gcc:gcc.*libc6-dev$/needed/p
        /^made/p; /^trained/p' "$work/out" | paste -s -d /
}
# shellcheck disable=SC2016
script "$work/quick/scripts/download_data.sh" 'echo "fetched $*" >>"$0.log"; mkdir -p data'
run 0 env CANNOT=nothing "$work/quick/scripts/quickstart.sh" --steps 2
is "quickstart.sh where the net answers" \
    "all mpirun:openmpi-bin/made/trained with --data data/tinyshakespeare/input.txt --steps 2/made run_line" "$(steps)"
run 0 env CANNOT=nothing "$work/quick/scripts/quickstart.sh" --data x
is "quickstart.sh --data x: none is fetched" "all mpirun:openmpi-bin/made/trained with --data x/made run_line" \
    "$(steps)"
is "    and none was" "fetched tinyshakespeare" "$(cat "$work/quick/scripts/download_data.sh.log")"
run 0 env CANNOT=mpicc "$work/quick/scripts/quickstart.sh"
is "quickstart.sh where MPI cannot be installed" \
    "needed/made/trained with --data data/tinyshakespeare/input.txt/made run_line" "$(steps)"
run 1 env CANNOT=gcc "$work/quick/scripts/quickstart.sh"
is "quickstart.sh where gcc cannot be installed" "" "$(steps)"
rm "$fake/make"

# ---- download_data.sh: files of known sizes, and what says itself how long it is; after an interruption it goes on
# shellcheck disable=SC2016
script "$fake/curl" 'for url; do :; done
while [ "$1" != --output ]; do shift; done
[ -e "$2" ] || : >"$2"
tail -c "+$(($(wc -c <"$2") + 1))" "${url#file://}" >>"$2"'
net=$work/net/openai-community/gpt2/resolve/main
mkdir -p "$net"
for name in config generation_config tokenizer tokenizer_config; do echo "{}" >"$net/$name.json"; done
header='{"a":{"dtype":"F32","shape":[3],"data_offsets":[4,16]},"b":{"dtype":"F32","shape":[1],"data_offsets": [0, 4]}}'
weights() {
    printf '%b%s%s' "\\0$(printf %o ${#header})\\0\\0\\0\\0\\0\\0\\0" "$header" "$1" >"$net/model.safetensors"
}
gpt2() { run "$1" env HF_ENDPOINT="file://$work/net" scripts/download_data.sh gpt2 "$work/gpt2"; }
weights 16.bytes.of.two.
gpt2 0
check "download_data.sh gpt2: all files are there" "cmp $net/model.safetensors $work/gpt2/model.safetensors &&
    [ \"$(find "$work/gpt2" -type f | wc -l)\" = 5 ] && grep -q -- '--init .*gpt2. --generate' $work/out"
rm "$work/gpt2/model.safetensors"
head -c 50 "$net/model.safetensors" >"$work/gpt2/model.safetensors.part"
gpt2 0
check "    it goes on after an interruption" "cmp $net/model.safetensors $work/gpt2/model.safetensors"
weights cut.off && rm "$work/gpt2/model.safetensors"
gpt2 1
check "    refused: $(cat "$work/err")" "grep -q 'expected; it is removed' $work/err &&
    [ ! -e $work/gpt2/model.safetensors ] && [ ! -e $work/gpt2/model.safetensors.part ]"
weights 16.bytes.of.two. && gpt2 0
: >"$net/config.json" && rm "$work/gpt2/config.json"
gpt2 1
check "    refused: $(cat "$work/err")" "[ ! -e $work/gpt2/config.json ]"
rm "$fake/curl"

# ---- how the Makefile finds MPI
make_help() { run 0 env -u MPIRUN make -s -C "$project" --no-print-directory help "$@"; }
mpi_line() { sed -n 's/^MPI  *//p' "$work/out"; }
script "$fake/mpicc.wrong" 'echo "gcc -I/none -O9 -L/none -lnothing_of_this_name"'
script "$fake/mpicc.empty" 'exit 1'
make_help MPI=no
is "MPI=no" "dropped (MPI=no): one process only" "$(mpi_line)"
for name in mpicc.none mpicc.empty; do
    make_help MPICC=$name
    is "MPICC=$name" "NOT found (libopenmpi-dev, or scripts/quickstart.sh): one process only" "$(mpi_line)"
    is "nothing is said on stderr" "" "$(cat "$work/err")"
done
make_help MPICC=mpicc.wrong
check "flags that do not work: $(mpi_line)" "mpi_line | grep -q 'mpicc.wrong is there, but .* one process only'"
would() { env -u MPIRUN make -n BUILD="$work/build" "$@" 2>&1; } # VARIABLES TARGET: the commands that make would run
cd "$project" || exit 1
# builds WHAT PATTERN VARIABLES TARGET: the commands have the pattern; "! PATTERN": they do not
builds() {
    if [ "${2#! }" = "$2" ]; then check "$1" "would ${*:3} | grep -q -- '$2'"
    else check "$1" "! would ${*:3} | grep -q -- '${2#! }'"; fi
}
gpu=(NVCC=true cublaslt=lib/libcublasLt.so GPU_ARCH=90)
builds "MPI=no: no flag of MPI" "! USE_MPI\|lmpi" MPI=no -W train_gpt.cu train_gpt
builds "flags that do not work are not used" "! USE_MPI\|lnothing" MPICC=mpicc.wrong -W train_gpt.cu train_gpt
builds "MPI=no: the tests know it" ' MPIRUN="" ' MPI=no test
builds "DEBUG=1 is sanitized" "fsanitize.* -o train_gpt" DEBUG=1 -W train_gpt.cu train_gpt
builds "and only that" "! fsanitize.* -o train_gpt" -W train_gpt.cu train_gpt
# shellcheck disable=SC2016  # for sh to expand
script "$fake/nvidia-smi" 'for _ in $(seq "${GPUS:-1}"); do echo "A GPU"; done'
builds "beside a GPU make is for it" "-DUSE_CUDA.* -o train_gpt " "${gpu[@]}" -W train_gpt.cu train_gpt
builds "and make test for the CPU" "! -DUSE_CUDA.* -o train_gpt " "${gpu[@]}" -W train_gpt.cu build_tests
builds "make test_gpt as well is for the device" "-DUSE_CUDA.* -o .*/emulated/bf16/test_gpt" DEVICE=emulated \
    -W test_gpt.c test_gpt
line() { env "$@" make -s NVCC=true cublaslt=lib/libcublasLt.so MPIRUN=mpirun.fake4 run_line; }
is "one GPU needs no launcher" "run: ./train_gpt" "$(line)"
is "seven GPUs: as many as divide a batch" "run: MPIRUN=mpirun.fake4 scripts/mpirun.sh -np 4 ./train_gpt" \
    "$(line GPUS=7)"
rm "$fake/nvidia-smi"
is "without MPI that is one process" "run: ./train_gpt (one process: there is no MPI)" \
    "$(env -u MPIRUN make -s MPI=no run_line)"
is "without its mpirun, too" "run: ./train_gpt (one process: there is no mpirun.none)" \
    "$(MPIRUN=mpirun.none make -s run_line)"

# ---- with every MPI that is here: real ranks
cat >"$work/ranks.c" <<'END'
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
int main(int n, char** arguments) {
    int rank, size, sum;
    char host[32] = "", hosts[1024][32];
    MPI_Init(&n, &arguments);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    gethostname(host, sizeof host - 1);
    MPI_Gather(host, sizeof host, MPI_CHAR, hosts, sizeof host, MPI_CHAR, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        printf("%d ranks, sum %d, %s, threads %s, on", size, sum, arguments[1], getenv("OMP_NUM_THREADS"));
        for (int r = 0; r < size; r++) printf(" %s", hosts[r]);
        printf("\n");
    }
    MPI_Finalize();
    return 0;
}
END
export OMP_NUM_THREADS=2
rm "$fake/id" "$fake/ldd" "$fake/mpirun"
here() { for _ in $(seq "$1"); do printf ' %s' "$(uname -n)"; done; }
# shellcheck disable=SC2016
{
    # ssh to a host that is this machine under another name, and a srun that is mpirun
    script "$fake/ssh" 'while [ "${1#-}" != "$1" ]; do [ "$1" != -o ] || shift; shift; done
        host=$1; shift; unset OMP_NUM_THREADS; exec unshare -u sh -c "hostname $host; $*"'
    script "$fake/srun" '[ "$*" != --mpi=list ] || exit 0
        while [ "${1#-}" != "$1" ]; do shift; done
        exec scripts/mpirun.sh -np "$SLURM_NTASKS" "$@"'
}
kinds=""
for compiler in mpicc.openmpi mpicc.mpich mpicc; do
    launcher=mpirun${compiler#mpicc}
    { command -v $compiler && command -v "$launcher"; } >/dev/null || continue
    [ $compiler != mpicc ] || [ -z "$kinds" ] || continue # one of the two above
    make_help MPICC=$compiler
    line=$(mpi_line)
    check "MPICC=$compiler: $line" \
        "expr '$line' : '\(Open MPI\|MPICH\) [0-9.]*: as many ranks as mpirun starts$' >/dev/null"
    case $line in *"one process"*) continue ;; esac
    kinds="$kinds $launcher"
    flags=$(would MPICC=$compiler -W train_gpt.cu train_gpt | tail -n 1 |
        grep -o -e ' -DUSE_MPI' -e ' -[IL][^ ]*mpi[^ ]*' -e ' -lmpi[^ ]*' | tr -d '\n')
    check "the compiler gets its flags:$flags" "[[ '$flags' == *-DUSE_MPI*-I*-lmpi* ]]"
    export MPIRUN=$launcher
    # shellcheck disable=SC2086  # a list of words
    ${CC:-gcc} "$work/ranks.c" -o "$project_copy/train_gpt" $flags ||
        bad "$compiler: the program of this test does not compile"
    cd "$project_copy" || exit 1
    ranks=$(($(env -u OMP_NUM_THREADS nproc) + 2)) # more than cores
    [ $ranks -le 34 ] || ranks=34 # each needs a part of /dev/shm
    run 0 scripts/mpirun.sh -np $ranks ./train_gpt "a b"
    is "mpirun.sh -np $ranks" "$ranks ranks, sum $((ranks * (ranks - 1) / 2)), a b, threads 2, on$(here $ranks)" \
        "$(cat "$work/out")"
    line=$(env -u MPIRUN make -s -C "$project" --no-print-directory DEVICE=cpu MPICC=$compiler run_line)
    run 0 env -u MPIRUN sh -c "${line#run: } 'a b'"
    is "$line" "2 ranks, sum 1, a b, threads 2, on$(here 2)" "$(cat "$work/out")"
    run 0 env SLURM_JOB_ID=17 SLURM_NTASKS=2 "$work/slurm_script" "f g"
    is "run_slurm.sh" "2 ranks, sum 1, f g, threads 2, on$(here 2)" "$(cat "$work/out")"
    cd "$project" || exit 1
done
[ -n "$kinds" ] || echo "left out: real ranks, there is no MPI here"
unset MPIRUN OMP_NUM_THREADS

# ---- dev/test/run.sh
cd "$project_copy" || exit 1
# Every program that run.sh calls has a stand-in here.
sed "s|\$system|dev/test/system|g" dev/test/run.sh | grep -oE '[a-z_/]+/[a-z_]+\.(sh|py)' | while read -r program; do
    case $program in
    scripts/* | dev/tidy.py) ;;
    *check_generate.py | *check_transformers.py) script "$program" "exit 1" ;; # there is no torch here
    *) mkdir -p "${program%/*}" && script "$program" "echo '1 passed, 0 failed'" ;;
    esac
done
mkdir -p build/sanitized
# test NAME COMMENT PROGRAM: a test program, and its source as far as run.sh reads it
test_program() {
    printf '%s\n' "$2" >"dev/test/unit/$1.c"
    script "build/$1" "$3"
    script "build/sanitized/$1" "$3"
}
tests() { BUILD=build FUZZERS='' GPU_TESTS="${GPU-}" TIER=full PLAIN="$1" SANITIZED="$1" run "$2" env MPIRUN="$3" sh \
    -c 'exec dev/test/run.sh </dev/zero'; }
lines() { sed -n "s/  *[0-9]* s  *[0-9]* s of CPU$//; s/  */ /g; /^$1/p" "$work/out" | paste -s -d /; }
# shellcheck disable=SC2016
says='echo "9 passed, 9 failed"; echo "1 passed, 0 failed of many"; echo "options ${ASAN_OPTIONS-none} $*"
    echo "5 passed, 0 failed"'
test_program test_many "/*
A test.
ranks: 1 3 8
*/
/* ranks: 7 */" "$says"
tests test_many 0 mpirun.once
five="5 passed 0 failed"
is "run.sh, sanitized" \
    "test_many sanitized $five/test_many sanitized, 3 ranks $five/test_many sanitized, 8 ranks $five" \
    "$(lines 'test_many sanitized')"
is "several ranks are started by mpirun, MPI's leaks ignored" \
    "FAKE mpirun -np 8 build/sanitized/test_many --short </dev/null/options detect_leaks=0 --short" \
    "$(grep -e FAKE -e options 'build/log/test_many_sanitized,_8_ranks.log' | paste -s -d /)"
# Whether the ranks of a real mpirun stay behind when timeout signals it twice depends on luck; this does not.
# shellcheck disable=SC2046
check "mpirun is in no process group that timeout made (parent, group: $(cat "$called"))" \
    "[ $(sed 's/ / != /' "$called") ]"
is "one rank without mpirun, leaks counted" "options none --short" \
    "$(grep -e FAKE -e options build/log/test_many_sanitized.log)"
test_program test_bad "/* ranks: 2 */" "echo 'FAIL  the third'; echo '2 passed, 3 failed'; exit 1"
test_program test_crash "/* ranks: 2 */" "echo '4 passed, 0 failed'; exit 139"
test_program test_empty "/* ranks: 2 */" "true"
tests "test_bad test_crash test_empty" 1 mpirun.once
is "failures are counted" "test_bad sanitized, 2 ranks 2 passed 3 failed/test_bad, 2 ranks 2 passed 3 failed" \
    "$(lines test_bad)"
is "a crash after the last line is a failure" \
    "test_crash sanitized, 2 ranks 4 passed 1 failed/test_crash, 2 ranks 4 passed 1 failed" "$(lines test_crash)"
is "no test is a failure" "test_empty sanitized, 2 ranks 0 passed 1 failed/test_empty, 2 ranks 0 passed 1 failed" \
    "$(lines test_empty)"
is "run.sh adds up failures" "10 failed" "$(tail -n 1 "$work/out" | grep -o '[0-9]* failed')"
test_program test_luck "/* ranks: 2 */" "[ -e $work/tried ] && echo '3 passed, 0 failed' &&
    exit; : >$work/tried; echo 'FAIL  by chance'; echo '2 passed, 1 failed'; exit 1"
tests "test_luck" 0 mpirun.once
is "what fails only once is printed, and has passed" \
    "again: test_luck sanitized, 2 ranks, which has failed once:/FAIL by chance" \
    "$(sed -n 's/  */ /g; /luck.*once\|chance/p' "$work/out" | paste -s -d /)"

cp "$(command -v sleep)" "$work/waits_for_ever"
test_program test_waits "/*
ranks: 2
*/" "exec $work/waits_for_ever 1000"
for launcher in mpirun.once $kinds; do
    RANKS_TIMEOUT=1 tests "test_waits" 1 "$launcher"
    check "ranks that wait for ever are a failure, $launcher" \
        "[ \"\$(lines 'test_waits,')\" = 'test_waits, 2 ranks 0 passed 1 failed' ] &&
        grep -q 'FAIL  stopped after 1 s' $work/out"
    for _ in $(seq 300); do
        grep -lsz "^$work/waits_for_ever" /proc/[0-9]*/cmdline >/dev/null || break
        sleep 0.2
    done
    check "and none of them is left" "! grep -lsz '^$work/waits_for_ever' /proc/[0-9]*/cmdline"
done

if command -v shellcheck >/dev/null; then
    check "shellcheck finds nothing" \
        "cd '$project' && shellcheck -x scripts/*.sh dev/test/run.sh dev/test/system/test_launch.sh"
fi
finish
