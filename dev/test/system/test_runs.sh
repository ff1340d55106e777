#!/bin/bash
# Runs of several ranks that do not end well, and what surrounds them: files that are not there, ranks that were started
# differently, ranks that die, losses that are no numbers, threads, another MPI. Whatever is wrong has to end soon, with
# one line of the trainer on stderr (mpirun adds its own), the exit status that one rank has, and nothing half-written.
# Killed runs and launchers, damaged checkpoints, full disks: torture.py.
. dev/test/system/mesh.sh

# MPICH's build of the same sources, made while the rest is tested. -O1: what it computes is tested, not how fast.
if command -v mpicc.mpich >/dev/null && command -v mpirun.mpich >/dev/null && ! "$MPIRUN" --version 2>&1 | grep -q HYDRA
then
    mkdir mpich mpich/dev
    cp -r "$project"/dev/{emulator,dev.mk,gpu.mk} mpich/dev
    cp -r "$project"/*.h "$project/train_gpt.cu" "$project/Makefile" \
        "$project"/{checkpoint,comm,dataloader,kernels,methods,parallel,planner,trainer,util} mpich
    (unset MAKEFLAGS MAKELEVEL MFLAGS && exec make -s -C mpich MPICC=mpicc.mpich MPIRUN=mpirun.mpich MPI=yes BUILD=b \
        PRECISION="${PRECISION:-fp32}" FAST=-O1 train_gpt) >mpich.log 2>&1 &
    building=$!
fi

trains "1:" "${run[@]}" --out mesh0

# ---- files and disks
refuses 1 "nowhere.txt" 2 "${model[@]}" --data nowhere.txt
refuses 1 "text.txt" 2 "${small[@]}" --out text.txt
refuses 1 "nowhere" 4 "${small[@]}" --init nowhere --tp 2
mkdir -p locked/log.jsonl
refuses 1 "rank 0, locked/log.jsonl" 2 "${short[@]}" --out locked --resume
refuses 1 "--trace" 2 "${short[@]}" --steps 2 --trace nowhere/trace.json

# ---- ranks that differ
launch 1 "$train" "${short[@]}" --steps 4 : -np 1 "$train" "${short[@]}" --steps 5
ended 2 '--steps, rank 1 (host , instead of "--steps 4' "other arguments"
launch 1 "$train" "${short[@]}" --steps 4 : -np 2 "$train" "${short[@]}" --steps 4 : -np 1 "$train" "${short[@]}"
ended 2 'rank 3 (host ' "the last of four ranks has an option less"
launch 1 "$train" "${short[@]}" --steps 4 : -np 1 "$train" "${short[@]}" --step 4
ended 2 'rank 1 (host ' "a wrong option on one rank"
many=$(printf 'text.txt,%.0s' {1..600})text.txt # as where a shell has expanded a pattern
launch 1 "$train" "${model[@]}" --data "$many" --steps 2 : -np 1 "$train" "${model[@]}" --data "$many" --steps 3
ended 2 'rank 1 (host ' "other arguments, after 5400 characters"
cp "$train" other && printf x >>other
launch 1 "$train" "${short[@]}" --steps 4 : -np 1 ./other "${short[@]}" --steps 4
ended 2 'rank 1 (host , differs from rank 0 in executable: ' "another executable"
mkdir on_rank0 on_rank1 on_rank2
export folders=$work/on_rank
cp text.txt on_rank0 && cp text.txt on_rank1 && sed 's/9876/9875/' text.txt >on_rank2/text.txt
launch 3 "$rank" "$train" "${model[@]}" "${data[@]}" "${quiet[@]}" --global-batch 9 --steps 4
ended 2 'rank 2 (host , differs from rank 0 in data: ' "other data, of the same size"
rm on_rank1/text.txt
launch 3 "$rank" "$train" "${model[@]}" "${data[@]}" "${quiet[@]}" --global-batch 9 --steps 4
ended 1 "rank 1, text.txt" "data that one rank does not have"

# ---- ranks that die
unset folders
for signal in KILL SEGV; do
    begins 2 4 "$rank" "$train" "${short[@]}" --steps 1000000 --tp 2 --pp 2
    kill -$signal "$(cat pids/2)"
    ends
    check "SIG$signal of rank 2 ends the job: status $status, $seconds s" "[ $status != 0 ] && [ $seconds -le 100 ]"
    check "it is named, and no rank is left" "named 2 && gone"
done
begins 2 4 "$rank" "$train" "${short[@]}" --steps 1000000 --pp 4
kill -TERM $launcher
ends
check "SIGTERM of mpirun ends all ranks: status $status, $seconds s" "[ $status != 0 ] && [ $seconds -le 100 ] && gone"
export folders=$work/on_rank
cp text.txt on_rank1 && cp text.txt on_rank0
begins 2 2 "$rank" "$train" "${short[@]}" --steps 1000000
truncate -s 0 on_rank1/text.txt
ends
check "a file that shrinks under rank 1 ends the job: status $status, $seconds s" \
    "[ $status != 0 ] && [ $seconds -le 100 ] && named 1 && gone"
unset folders

# ---- losses that are no numbers
skips=("${short[@]}" --lr 1000 --steps 200 --tp 2 --on-nan skip --save-every 8 --out skips)
launch 2 "$train" "${skips[@]}"
ended 1 "train_gpt: step, number 10 in a row" "ten steps that are skipped"
check "nine of them are printed and logged: $(grep -ac '^skipped ' out)" \
    "[ \$(grep -ac '^skipped   step .* nothing was updated' out) -ge 9 ] &&
    [ \$(tail -n 9 skips/log.jsonl | grep -c '\"skipped\":true') = 9 ]"
verify_py "as JSON:" skipped skips
launch 2 "$train" "${skips[@]}" --resume
ended 1 "10" "a resumed run"
# Both sites may find that their loss is no number in the same step, and each says so.
diverged() { # WHAT
    check "$1 -> $(grep -a '^train_gpt: ' err | head -n 1)" "[ $status = 1 ] && [ $seconds -le 100 ] &&
        grep -aq '^train_gpt: .*\(not finite\|loss is -*nan\)' err && [ \$(grep -ac '^train_gpt: ' err) -le 2 ]"
}
late=("${short[@]}" --dp-mode dc-s3gd --optimizer sgd --lr 1000 --clip 0 --steps 200 --save-every 1 --out late)
launch 2 "$train" "${late[@]}"
diverged "changes of weights that come late, at a learning rate of 1000"
launch 2 "$train" "${late[@]}" --resume
check "the checkpoint before it can be resumed: $(grep -a '^resume' out)" "grep -q '^resume .*step' out"
diverged "and ends as before"
launch 4 "$train" "${short[@]}" --lr 1000 --steps 200 --tp 2 --dp-mode dc-s3gd
check "a site says it once: $(grep -a '^train_gpt: ' err | head -n 1)" \
    "[ $status = 1 ] && [ \$(grep -ac ': site 0: step' err) -le 1 ] && grep -aq '^train_gpt: .*site [01]: step' err"

# ---- copies that differ
mkdir -p build died
launch 4 "$project/${BUILD:-build}/test_health" --die died
ended 1 "rank 3, t 1, p 0, d 1, transformer.h.0.ln_1.weight" \
    "a bit that is flipped on rank 3 of 4"
check "and nothing is saved that it is in: $(ls died)" "[ \"\$(cd died && echo step_*)\" = step_00000001 ]"

# ---- threads, and one process without a launcher
OMP_NUM_THREADS=3 launch 2 "$train" "${small[@]}" --dry-run
check "OMP_NUM_THREADS=3 is every rank's" "grep -q '^device .*, 3 threads a rank, 2 ranks here, 1 machine' out"
(
    unset OMP_NUM_THREADS
    launch 2 "$train" "${small[@]}" --dry-run
)
cores=$(($(env -u OMP_NUM_THREADS nproc) / 2))
check "without it the ranks share the cores" "grep -q '^device .*, $((cores > 0 ? cores : 1)) threads\? a rank' out"
mkdir nothing
env -i PATH=/nowhere HOME=/nowhere TMPDIR="$work/nothing" "$train" "${run[@]}" --out alone >out 2>err
check "alone, without mpirun, orted or PATH: trains, and leaves no trace of MPI" \
    "[ $? = 0 ] && [ ! -s err ] && [ -z \"\$(ls nothing)\" ]"
verify_py "with the same bits:" same mesh0 alone 0
launch 1 "$train" "${run[@]}" --out lonely
verify_py "mpirun -np 1, with the same bits:" same mesh0 lonely 0

# ---- another MPI
if [ -n "$building" ]; then
    wait $building
    status=$?
    check "MPICH's build: $(tail -n 1 mpich.log)" "[ $status = 0 ] && [ -x mpich/train_gpt ]"
    building=""
    MPIRUN=mpirun.mpich launch 4 mpich/train_gpt "${run[@]}" --tp 2 --pp 2 --out other_mpi
    check "MPICH: 4 ranks train" "[ $status = 0 ]"
    verify_py "MPICH: losses are those of one rank:" same mesh0 other_mpi $near
    launch 2 mpich/train_gpt "${small[@]}" --steps 1
    check "MPICH's build under another mpirun: $(grep -m 1 -a '^train_gpt' err)" \
        "[ $status = 1 ] && grep -q '2 processes were started together but do not find each other' err"
else echo "left out: a second MPI (mpicc.mpich is not installed, or is the one that is tested)"; fi

finish_ranks
