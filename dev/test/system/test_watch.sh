#!/bin/bash
# Runs that hang, with several ranks (LONG=1: on every mesh of a list): the watchdog (trainer/watchdog.h) ends them
# soon, names the rank that is to blame and where it stood, and a run that is only slow goes on. The trainer on a mesh
# that is drawn anew each time, test_watchdog's own jobs under every MPI that is here, and the table that ranks share
# under ThreadSanitizer. A rank that is killed: test_runs.sh.
. dev/test/system/mesh.sh
test_watchdog=$build/test_watchdog
export OMPI_MCA_mpi_yield_when_idle=1
context() { head -c 900 err; }

${CC:-gcc} -std=gnu11 -O1 -g1 -w -fsanitize=thread "$project/dev/test/unit/test_watchdog.c" -o tsan -lm -ldl \
    -pthread 2>/dev/null &
compiling=$!

# blames RANK STATE: one line, of the trainer or the test, about this rank, in this state, at a place
blames() { [ "$(grep -ac ': rank [0-9]* (process' err)" = 1 ] && grep -aq "^[a-z_]*: rank $1 (process [0-9]*) $2" err; }

# ---- the trainer: a rank of a mesh is stopped in the middle of a run
meshes=("--tp 2 --pp 2" "--dp 4 --zero 1" "--pp 4" "--tp 4 --sequence-parallel" "--pp 2 --dp 2 --schedule zb-v"
    "--dp 4 --dp-mode dc-s3gd" "--dp 4 --dp-mode diloco --local-steps 3" "--dp 4 --allreduce ring"
    "--tp 2 --dp 2 --zero 2")
[ -n "${LONG:-}" ] || meshes=("${meshes[$((RANDOM % ${#meshes[@]}))]}")
for mesh in "${meshes[@]}"; do
    victim=$((RANDOM % 4))
    # shellcheck disable=SC2086  # a list of words
    begins 3 4 "$rank" "$train" "${short[@]}" --steps 1000000 $mesh --watchdog 2
    sleep "0.0$((RANDOM % 10))"
    kill -STOP "$(cat pids/$victim)"
    ends
    check "$mesh, rank $victim is stopped: status $status after $seconds s: $(grep -a '^train_gpt' err)" \
        "[ $status = 1 ] && [ $seconds -le 100 ] &&
        blames $victim 'is stopped, by a signal or a debugger, at step [0-9]'"
    check "the others say what they wait for, and no rank is left" "gone &&
        [ \$(grep -ac '^  rank [0-9] (process [0-9]*) ' err) = 3 ] &&
        grep -aq '^  rank .* waits at step .*: .* in group ' err"
done

# ---- jobs of test_watchdog
launchers=$(command -v "$MPIRUN" >/dev/null && echo "$MPIRUN:$test_watchdog")
if [ "$MPIRUN" != mpirun.mpich ] && command -v mpicc.mpich mpirun.mpich >/dev/null; then
    # shellcheck disable=SC2046  # a list of flags
    ${CC:-gcc} -std=gnu11 -O1 -w -DUSE_MPI $(mpicc.mpich -show | tr ' ' '\n' | grep '^-[IDLl]\|^-Wl') \
        "$project/dev/test/unit/test_watchdog.c" -o test_watchdog \
        $(mpicc.mpich -show | tr ' ' '\n' | grep '^-[Ll]\|^-Wl') -lm -ldl -pthread &&
        launchers="$launchers mpirun.mpich:$work/test_watchdog"
else echo "left out: a second MPI"; fi
for pair in $launchers; do
    MPIRUN=${pair%%:*} program=${pair#*:}
    [ "$MPIRUN" = mpirun.mpich ] && hows="spin stop" || hows="spin stop crossed slow"
    for how in $hows; do
        begins 0 3 "$rank" "$program" "$how"
        ends
        case $how in
        spin) says="blames 2 'waits for no rank and makes no progress at step 3, forward 6 of chunk 0'" ;;
        stop) says="blames 2 'is stopped, .* at step 3, forward 6'" ;;
        crossed) says="blames '[012]' 'waits at step 3, .*silent for'" ;;
        slow) says="[ ! -s err ]" ;;
        esac
        [ "$how" = slow ] && expected=0 || expected=1
        # MPICH's mpirun may show the status of a rank that it killed
        check "$MPIRUN, $how: status $status after $seconds s: $(grep -a '^test_watchdog' err)" \
            "{ [ $status = $expected ] || [ $expected = 1 -a $status -gt 1 ]; } && [ $seconds -le 100 ] && $says &&
            gone"
    done
done

# ---- threads
wait $compiling
if [ -x tsan ]; then
    ./tsan >out 2>err
    status=$?
    check "under ThreadSanitizer: status $status, $(tail -n 1 out) $(grep -a '^FAIL' out)" \
        "[ $status = 0 ] && [ ! -s err ]"
else echo "left out: ThreadSanitizer"; fi
check "nothing is left in /dev/shm" "! ls /dev/shm | grep -q threefold"
finish
