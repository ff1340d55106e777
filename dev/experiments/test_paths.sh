#!/bin/bash
# Two sites joined by several paths (dev/experiments/net_sites.sh): the trainer's sums go over all of them at once, by
# Multipath TCP, with the bits of a run without any network; so they do when a path dies in mid-run, is given up by the
# kernel and comes back, and when the first path, that every connection was opened over, goes down for good. Half a
# minute. Left out but for a line where there is no root, no Multipath TCP, or no Open MPI 4. train_gpt is built
# already.
set -u
. dev/test/system/checks.sh
project=$PWD
train=$project/train_gpt
net=$project/dev/experiments/net_sites.sh
work=$(mktemp -d)
running="" up=0
clean() {
    [ -z "$running" ] || kill "$running" 2>/dev/null
    [ $up = 0 ] || "$net" down
    rm -rf "$work"
}
trap clean EXIT
trap 'exit 1' INT TERM
cd "$work" || exit 1
unset NET_PATHS_BY NET_CUT NET_BUFFER NET_MTU NET_BURST NET_MPI_FLAGS
export OMP_NUM_THREADS=1 OMPI_MCA_btl_vader_backing_directory=$work # not /dev/shm, where killed jobs leave their memory
context() { tail -n 3 err; }

# refuses STATUS TEXT ARGUMENTS...: net_sites.sh ends with STATUS and one line, which has TEXT
refuses() {
    "$net" "${@:3}" >out 2>err </dev/null
    status=$?
    if [ $status = "$1" ] && [ "$(grep -c '^net_sites.sh: ' err)" = 1 ] && grep -qF -- "$2" err; then
        ok "${*:3} -> $(tail -n 1 err)"
    else bad "${*:3}: exit status $status (expected $1), stderr (expected \"$2\"): $(head -c 500 err)"; fi
}

# log FOLDER: what was trained, without the times
log() { sed 's/"step_ms".*//' "$1/log.jsonl"; }

# begins FOLDER: a run with a replica in each site, in the background
begins() {
    : >out
    timeout -k 5 40 "$net" run "$train" "${run[@]}" --out "$1" >out 2>err </dev/null &
    running=$!
}

# until COMMAND: waits for it to be true, for at most ten seconds, while something runs
until_true() {
    for _ in $(seq 200); do
        ! eval "$1" || return 0
        kill -0 $running 2>/dev/null || return 1
        sleep 0.05
    done
    return 1
}
steps() { [ "$(grep -c '^step ' out)" -ge "$1" ]; }

ends() {
    wait $running
    status=$?
    running=""
}

# carried PATH: bytes, both directions
carried() { "$net" bytes | awk -v path="$1" '$3 == path { sum += $4 } END { print sum + 0 }'; }

# subflows: those of the ranks' connections, on path 1 (those of mpirun itself are idle: they do not notice)
subflows() {
    for site in 0 1; do
        ip netns exec threefold-sites-$site ss -Htn state established "( src 10.98.1.0/30 and dport lt 20000 )"
    done | wc -l
}

"$net" --help >out 2>err
check "net_sites.sh explains itself" "[ $? = 0 ] && [ ! -s err ] && grep -q 'net_sites.sh with 2 1 4 25' out"
case $("${MPIRUN:-mpirun}" --version 2>&1) in
*"(Open MPI) 4."* | *"(OpenRTE) 4."*) ;;
*)
    echo "left out: several paths between two sites (no Open MPI 4)"
    finish
    ;;
esac
if ! "$net" up 2 1 2 25 2>err; then
    echo "left out: several paths between two sites ($(tail -n 1 err))"
    finish
fi
up=1

seq 1 12000 | tr '\n' ' ' >text.txt
run=(--data text.txt --layers 4 --hidden 96 --heads 4 --seq 32 --warmup 2 --global-batch 4 --micro-batch 1
    --dp 2 --steps 10 --eval-every 0 --sample-every 0)
timeout --foreground -k 5 30 "$project/scripts/mpirun.sh" -np 2 "$train" "${run[@]}" --out plain >out 2>err </dev/null
check "without a network: trains" "[ $? = 0 ] && [ \$(wc -l <plain/log.jsonl) = 10 ]"

begins paths
ends
check "over two paths: trains" "[ $status = 0 ]"
check "with the same bits" "[ -n \"\$(log paths)\" ] && [ \"\$(log plain)\" = \"\$(log paths)\" ]"
first=$(carried 0) second=$(carried 1)
# 1.8 MB of gradients a step from each site
check "both paths carry: $first and $second bytes" "[ $((first + second)) -gt 30000000 ] &&
    [ $first -gt $(((first + second) / 3)) ] && [ $second -gt $(((first + second) / 3)) ]"

# Nothing tells the kernel that this path is cut; and after a few tries, in a second or two, it closes the subflow.
for site in 0 1; do ip netns exec threefold-sites-$site sysctl -q -w net.ipv4.tcp_retries2=2; done
begins cut1
until_true "steps 2"
check "there is one subflow on the second path" "[ \$(subflows) = 1 ]"
"$net" cut 1
check "which is cut after step 2, and the kernel gives it up" "until_true '[ \$(subflows) = 0 ]' && kill -0 $running"
until_true "steps 4"
reached=$(grep -c '^step ' out)
before=$(carried 1)
"$net" heal 1
ends
check "the run went on meanwhile, to step $reached, and to its end" \
    "[ $status = 0 ] && [ $reached -ge 4 ] && [ $reached -lt 10 ]"
check "with the same bits" "[ \"\$(log plain)\" = \"\$(log cut1)\" ]"
after=$(carried 1)
check "when it was back the path was used again: $((after - before)) bytes" "[ $((after - before)) -gt 1000000 ]"

begins cut0
until_true "steps 2"
NET_CUT=down "$net" cut 0
ends
check "the first path goes down for good: trains on" "[ $status = 0 ]"
check "with the same bits" "[ \"\$(log plain)\" = \"\$(log cut0)\" ]"

refuses 1 "sites are up already" up 2 1 2 20
refuses 2 "PATH is 0 to 1" cut 2
refuses 2 "two sites of 0 to 1" heal 1 0 2
"$net" down
up=0
refuses 1 "there are no sites" cut 0
refuses 1 "there are no sites" run true
refuses 2 "SITES is 2 to 8" up 1 1 2 20
refuses 2 "PATHS is 1 to 8" up 2 1 9 20
refuses 2 "one for each of the 3 paths" up 2 1 3 20,10
refuses 2 "a number above 0" up 2 1 2 0
NET_PATHS_BY=all refuses 2 "mptcp, mpi or one" up 2 1 2 20

"$net" with 2 2 3 20 -- sh -c 'hostname >"$0/host.$OMPI_COMM_WORLD_RANK"; sleep 60' "$work" >out 2>err </dev/null &
running=$!
until_true "[ -s host.0 ] && [ -s host.1 ] && [ -s host.2 ] && [ -s host.3 ]"
check "two ranks in each site, in order" "[ \"\$(cat host.? | tr '\n' ' ')\" = 'site0 site0 site1 site1 ' ]"
kill "$running"
ends
check "stopped: nothing is left" \
    "[ $status = 143 ] && ! ip netns list | grep -q threefold-sites && [ ! -e /run/threefold-sites-now ]"
finish
