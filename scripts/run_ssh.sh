#!/bin/sh
# scripts/run_ssh.sh HOSTS N_PER_HOST [OPTIONS]   trains on several machines that ssh reaches without a password:
#
#   scripts/run_ssh.sh node1,node2 4 --tp 4 --dp 2 --data /shared/tokens.bin
#   scripts/run_ssh.sh my_hosts.txt 4 --tp 4 --dp 2 --data /shared/tokens.bin
#
# HOSTS is a list with commas, or a file with one name a line (what follows the name, or a #, is ignored). Every host
# gets N_PER_HOST ranks, the first host ranks 0 to N_PER_HOST - 1. OPTIONS go to the trainer.
#
# All hosts need the same MPI, and this folder and the data under the same path (a network drive, or copies). Before
# anything is started, every host is asked for the checksum of its ./train_gpt. Where their CPUs differ, build for all
# of them: make ARCH=x86-64-v3. OMP_NUM_THREADS, where it is set, is handed to all hosts.
set -euf # f: a * in a name stays a *
project=$(cd "$(dirname "$0")/.." && pwd)
program=$project/train_gpt

# TEXT: as one word of a shell's command, whatever is in it.
quoted() { printf "'%s'" "$(printf '%s\n' "$1" | sed "s/'/'\\\\''/g")"; }

stop() { # STATUS MESSAGE
    echo "run_ssh.sh: $2" >&2
    exit "$1"
}

# HOST: prints the checksum and size of its ./train_gpt; this machine is not asked over the network.
checksum_on() {
    case $1 in
    localhost | "$(uname -n)") cksum <"$program" ;;
    *)
        there=$(quoted "$program")
        ssh -o BatchMode=yes -o ConnectTimeout=10 "$1" "test -r $there && cksum <$there || echo none" </dev/null
        ;;
    esac
}

case ${1:-} in
'' | -h | --help) sed -n '1d;/^#/!q;s/^# \{0,1\}//p' "$0"; [ $# -gt 0 ] || exit 2; exit 0 ;;
esac
if [ -f "$1" ]; then hosts=$(sed 's/#.*//' "$1" | awk 'NF { print $1 }')
else hosts=$(printf '%s\n' "$1" | awk -v RS='[, \n]+' 'NF'); fi
[ -n "$hosts" ] || stop 2 "$1 names no host: HOSTS is node1,node2,... or a file with one name a line"
for host in $hosts; do
    case $host in
    -* | *[!A-Za-z0-9._-]*)
        stop 2 "\"$host\" is neither a host nor a file: HOSTS is node1,node2,... or a file with one name a line"
        ;;
    esac
done
twice=$(echo "$hosts" | sort | uniq -d | head -n 1)
[ -z "$twice" ] || stop 2 "$twice is there twice: name every host once, N_PER_HOST says how many ranks it gets"
case ${2:-} in
'' | 0* | *[!0-9]*)
    stop 2 "N_PER_HOST, the ranks on each host, is a whole number from 1 up, not \"${2:-}\" (see run_ssh.sh --help)"
    ;;
esac
per_host=$2
shift 2
[ -x "$program" ] || stop 1 "there is no $program: type make first"
grep -q MPI_Init "$program" ||
    stop 1 "$program was built without MPI: install it (libopenmpi-dev, openmpi-bin), type make again"

# ---- does every host answer, with the same program?
ours=$(cksum <"$program")
bad=0 n=0
for host in $hosts; do
    n=$((n + 1))
    theirs=$(checksum_on "$host") || theirs=silent
    case $theirs in
    "$ours") continue ;;
    silent) echo "run_ssh.sh: $host does not answer: try \"ssh $host\", which has to work without a password" >&2 ;;
    none) echo "run_ssh.sh: $host has no $program: copy this folder there, under the same path" >&2 ;;
    *) echo "run_ssh.sh: $host has another $program than this machine: build it once, copy it to every host" >&2 ;;
    esac
    bad=$((bad + 1))
done
[ $bad = 0 ] || stop 1 "$bad of $n hosts cannot take part; nothing was started"

# ---- start. Open MPI counts slots, host:4; MPICH has the ranks of each host as a number of its own.
list=$(echo "$hosts" | tr '\n' ',')
list=${list%,}
case $("${MPIRUN:-mpirun}" --version 2>&1) in
*"Open MPI"* | *OpenRTE*)
    where="--host $(echo "$list" | sed "s/,/:$per_host,/g"):$per_host"
    [ -z "${OMP_NUM_THREADS:-}" ] || where="$where -x OMP_NUM_THREADS"
    ;;
*) where="-hosts $list -ppn $per_host" ;; # hands over the whole environment
esac
# shellcheck disable=SC2086  # a list of words
exec "$project/scripts/mpirun.sh" -np $((n * per_host)) $where "$program" "$@"
