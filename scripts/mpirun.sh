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
#                      keepalive: a machine that is out of reach for 30 s ends the job, for which mpirun would wait
# MPICH and its kin    does all of this unasked
#
# mpirun takes Ctrl-C as "end the job", and kills its ranks a second later. Where this is started from a terminal
# Ctrl-C, SIGTERM and SIGHUP become SIGUSR1, which mpirun hands to the ranks, so that they save and stop; a second one
# ends the job.
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
    for prefix in OMPI PRTE; do # of Open MPI 4, and of PRRTE, which starts the ranks of Open MPI 5
        export "${prefix}_MCA_oob_tcp_keepalive_time=10" "${prefix}_MCA_oob_tcp_keepalive_intvl=5" \
            "${prefix}_MCA_oob_tcp_keepalive_probes=4"
    done
    ;;
esac
# shellcheck disable=SC2086  # a list of words
[ -t 0 ] || [ -t 1 ] || [ -t 2 ] || exec "$mpirun" $flags "$@"

signals=0
# shellcheck disable=SC2317  # the traps call it
pass_on() { # SIGNAL
    kill -s "$1" "$run" 2>/dev/null || true
    signals=$((signals + 1))
}
# In a session of its own the terminal's Ctrl-C does not reach it.
# shellcheck disable=SC2086
setsid "$mpirun" $flags "$@" <&0 &
run=$!
# shellcheck disable=SC2317  # the trap calls it
ask_to_stop() {
    trap 'pass_on TERM' INT TERM HUP
    echo 'mpirun.sh: the ranks are asked to stop; Ctrl-C once more ends them' >&2
    pass_on USR1
}
trap ask_to_stop INT TERM HUP
trap 'pass_on USR1' USR1
seen="" code=0
while [ "$seen" != $signals ]; do # a signal interrupts wait
    seen=$signals status=$code code=0
    wait "$run" || code=$?
    [ "$code" != 127 ] || code=$status # it was over the time before
done
exit "$code"
