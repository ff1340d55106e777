#!/bin/sh
# scripts/run_local.sh N [OPTIONS]   trains with N ranks on this machine; OPTIONS go to the trainer:
#
#   scripts/run_local.sh 4 --tp 2 --pp 2 --data "my/*.txt" --out run1
#
# The ranks share the cores: 4 ranks on 16 cores get 4 threads each. With OMP_NUM_THREADS=... every rank has that many.
set -eu
project=$(cd "$(dirname "$0")/.." && pwd)
program=$project/train_gpt

stop() { # STATUS MESSAGE
    echo "run_local.sh: $2" >&2
    exit "$1"
}

case ${1:-} in
'' | -h | --help) sed -n '1d;/^#/!q;s/^# \{0,1\}//p' "$0"; [ $# -gt 0 ] || exit 2; exit 0 ;;
0* | *[!0-9]*) stop 2 "N, the number of ranks, is a whole number from 1 up, not \"$1\" (see run_local.sh --help)" ;;
esac
ranks=$1
shift
[ -x "$program" ] || stop 1 "there is no $program: type make first"
# N copies of a program that knows nothing of MPI would be N trainings.
[ "$ranks" = 1 ] || grep -q MPI_Init "$program" ||
    stop 1 "$program was built without MPI: install it (libopenmpi-dev, openmpi-bin), type make again"
exec "$project/scripts/mpirun.sh" -np "$ranks" "$program" "$@"
