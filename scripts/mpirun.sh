#!/bin/sh
# scripts/mpirun.sh [OPTIONS] PROGRAM ...   mpirun, with the flags that this machine needs:
#
#   scripts/mpirun.sh -np 4 ./train_gpt --tp 2 --pp 2
#
# The other scripts and the tests start ranks through it. MPIRUN=... names another mpirun.
#
# Open MPI (4 and 5)   --bind-to none: the trainer shares the cores among its ranks itself
#                      --map-by slot:OVERSUBSCRIBE: more ranks than cores may be started, as tests and lessons do; and
#                      neighbours in rank are on one machine, where tensor parallel wants them
#                      --allow-run-as-root: as root only, which is what one is in a container
# MPICH and its kin    does all of this unasked
set -eu
mpirun=${MPIRUN:-mpirun}
case ${1:-} in
'' | -h | --help) sed -n '1d;/^#/!q;s/^# \{0,1\}//p' "$0"; [ $# -gt 0 ] || exit 2; exit 0 ;;
esac
if ! command -v "$mpirun" >/dev/null 2>&1; then
    echo "mpirun.sh: there is no $mpirun here: install MPI (openmpi-bin), or name another one with MPIRUN=..." >&2
    exit 1
fi
flags=""
case $("$mpirun" --version 2>&1) in
*"Open MPI"* | *OpenRTE*)
    flags="--bind-to none --map-by slot:OVERSUBSCRIBE"
    [ "$(id -u)" != 0 ] || flags="$flags --allow-run-as-root"
    ;;
esac
# shellcheck disable=SC2086  # a list of words
exec "$mpirun" $flags "$@"
