#!/bin/sh
# sbatch scripts/run_slurm.sh [OPTIONS]   trains on a Slurm cluster; type it in the project's folder, after make there.
# OPTIONS go to the trainer:
#
#   sbatch scripts/run_slurm.sh --tp 4 --dp 2 --data /shared/tokens.bin --out run1
#   sbatch --nodes=8 --time=12:00:00 scripts/run_slurm.sh --tp 4 --dp 8 --data /shared/tokens.bin --out run1 --resume
#
# The next lines are the defaults; what is given to sbatch before the script's name comes first. Nodes times tasks per
# node is the number of ranks; --tp, --pp and --dp have to multiply to it. Tasks per node times CPUs per task should be
# the cores of a node. What the trainer prints is in slurm-JOB.out.
#
# With --out a run may be longer than --time. Five minutes before the end Slurm sends the ranks SIGUSR1 (--signal; up to
# a minute earlier): they save, end with status 75, and the job is put into the queue again, where it starts with
# --resume; so does a job that Slurm itself puts there again, as after the loss of a node, or when a more urgent job
# takes its place. At most REQUEUES times (100). scancel ends it for good.
#
#SBATCH --job-name=threefold
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --time=01:00:00
#SBATCH --signal=USR1@300
#SBATCH --requeue
#SBATCH --open-mode=append
set -eu
program=./train_gpt # where sbatch was typed: Slurm runs a copy of this script, whose own place says nothing

stop() { # STATUS MESSAGE
    echo "run_slurm.sh: $2" >&2
    exit "$1"
}

if [ -z "${SLURM_JOB_ID:-}" ] || [ "${1:-}" = --help ] || [ "${1:-}" = -h ]; then
    sed -n '1d;/^#SBATCH/{p;d};/^#/!q;s/^# \{0,1\}//p' "$0"
    case ${1:-} in
    -h | --help) exit 0 ;;
    *) stop 2 "this is no Slurm job: start it with sbatch" ;;
    esac
fi
[ -x "$program" ] || stop 1 "there is no $PWD/train_gpt: type make and then sbatch in the project's folder"
grep -q MPI_Init "$program" ||
    stop 1 "$PWD/train_gpt was built without MPI: load the cluster's MPI module, type make again"

# The cores of a rank. Since Slurm 22.05 srun does not take them from sbatch's options.
cpus=${SLURM_CPUS_PER_TASK:-1}
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-$cpus}"

# How srun tells the ranks of each other: Open MPI asks for PMIx, MPICH for PMI-2. SLURM_MPI_TYPE=... overrides it.
case $(ldd "$program" 2>/dev/null) in
*libmpich*) wanted="pmi2 pmix" ;;
*) wanted="pmix pmi2" ;;
esac
types=" $(srun --mpi=list 2>&1 | tr '\n\t,:' '    ') "
mpi=${SLURM_MPI_TYPE:-}
for type in $wanted; do
    case $types in *" $type "*) mpi=${mpi:-$type} ;; esac
done

# A requeued run is resumed.
restarts=${SLURM_RESTART_COUNT:-0} out="" resumes=""
for word; do
    case $word in
    --out | --out=*) out=yes ;;
    --resume) resumes=yes ;;
    esac
done
if [ "$restarts" -gt 0 ] && [ -n "$out" ] && [ -z "$resumes" ]; then set -- "$@" --resume; fi

# SIGTERM is scancel, or a more urgent job: the ranks have got it too. Who comes after it, Slurm knows better.
cancelled="" signals=0 run=""
# shellcheck disable=SC2317  # the trap calls it
cancel() {
    cancelled=yes signals=$((signals + 1))
    [ -z "$run" ] || kill -s USR1 "$run" 2>/dev/null
}
trap cancel TERM

# A rank that fails ends the job: the others would wait for it until the time is over.
srun ${mpi:+--mpi="$mpi"} --cpus-per-task="$cpus" --kill-on-bad-exit=1 \
    "$program" "$@" &
run=$!
[ -z "$cancelled" ] || kill -s USR1 "$run" # it came a moment ago
status="" seen=-1
while [ $seen != $signals ]; do # a signal interrupts wait
    seen=$signals code=0
    wait "$run" || code=$?
    [ $code = 127 ] && [ -n "$status" ] || status=$code
done
if [ "$status" = 75 ] && [ -n "$out" ] && [ -z "$cancelled" ]; then
    [ "$restarts" -lt "${REQUEUES:-100}" ] ||
        stop 75 "stopped and saved, but not put into the queue again: that was done $restarts times"
    echo "run_slurm.sh: stopped and saved: job $SLURM_JOB_ID resumes later (restart $((restarts + 1)))"
    scontrol requeue "$SLURM_JOB_ID" || stop 75 "cannot be put into the queue again: sbatch it with --resume"
fi
exit "$status"
