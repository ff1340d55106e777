#!/usr/bin/env bash
# dev/experiments/net_torus.sh   a network of many nodes on this one Linux machine, to measure on a real network what
# all-reduce algorithms cost: real TCP, real queues, real sharing of links; only the links are slow, so that two cores
# can feed them all.
#
#   net_torus.sh with torus:4x4 20 -- ./program ...   builds the network, runs the program with one MPI rank on
#                                                     every node, takes the network down, whatever happens
#   net_torus.sh with torus:4x4 20 --here ./many.sh   the same, but runs the command once, outside of the nodes: a
#                                                     script that calls "net_torus.sh run" as often as it likes
#   net_torus.sh up FILE|NAME [MBIT] [MICROSECONDS]   the three parts by themselves: up, run, down
#   net_torus.sh run N COMMAND ...                    N MPI ranks, rank r on node r
#   net_torus.sh bytes                                what every link has carried so far: lines "FROM TO BYTES"
#   net_torus.sh down                                 also clears what an interrupted run has left
#
# FILE (- is standard input) is a list: first "nodes N", then a line "A B MBIT MICROSECONDS" for every link between the
# nodes A and B, numbers from 0 to N-1; what follows a # is ignored. Lines "route FROM TO NEXT" may follow. A NAME such
# as torus:4x4 is one that the program build/network_links prints such a list for. MBIT and MICROSECONDS on the command
# line replace those of the list.
#
# How it is built. A node is a network namespace: interfaces, addresses and routes of its own. A link is a veth pair, a
# cable with one end in each of two nodes. What a node sends into a cable goes through a token bucket (tc tbf) of
# MBIT/s, so both directions have the full rate. A delay, where one is asked for, is made by tc netem. Node r has one
# address, 10.99.(r/250).(r%250+1); every node forwards. Routes are static: those of the list, else shortest in hops by
# the neighbour whose link comes first in the list.
#
# How MPI runs on it. Open MPI, started as on a cluster: mpirun runs in node 0 and logs in to the others, only that this
# script takes the place of ssh. Each node has a host name of its own, so that no shared memory goes past the network.
#
# What to expect. A full packet is MTU + 14 bytes on the wire and carries MTU - 52 of data: 99.3 % with MTU 9000, 95.6 %
# with 1500. After a pause a link lets NET_BURST bytes through at once, so a further hop over idle links costs next to
# nothing. 16 nodes on 2 cores, with all 64 directions busy at 20 Mbit/s, got 95 % of it; give them no more, and keep
# the machine quiet: a rank that waits for a core is a late message.
#
# How to measure. Let all ranks start at one time of the clock, which they share (MPI_Wtime: agree on a moment 0.1 s
# ahead), not behind an MPI_Barrier: its last messages stand in the queue behind what the first ranks out of it send
# already. Wait with MPI_Testall and a nap of 50 to 200 microseconds: a rank that spins takes the core from one that
# works.
#
# Settings, as variables: NET_MTU (9000), NET_BURST (12000: bytes that a link lets through at once after a pause; at
# least NET_MTU + 14), MPIRUN (mpirun.openmpi or mpirun), NET_MPI_FLAGS (more options for mpirun). Needs root, iproute2
# (ip, tc), util-linux (unshare), procps (sysctl), Open MPI.
set -euo pipefail
self=$(readlink -f "$0")
project=$(cd "$(dirname "$self")/../.." && pwd)
prefix=threefold-net-
state=/run/${prefix}now
# shellcheck source=dev/experiments/namespaces.sh
. "$(dirname "$self")/namespaces.sh"

check_settings() { :; }

# Reads a list; writes what ip and tc have to do into files: links, then node.R and queue.R for every node. Prints N.
plan() { # FOLDER MBIT MICROSECONDS
    awk -v dir="$1" -v all_mbit="$2" -v all_delay="$3" -v prefix="$prefix" -v mtu="$mtu" -v burst="$burst" '
    function bad(why) {
        print "net_torus.sh: line " NR " of the list, \"" $0 "\": " why | "cat >&2"
        failed = 1
        exit 1
    }
    function number(x) { return x ~ /^[0-9]+(\.[0-9]+)?$/ }
    function address(r) { return "10.99." int(r / 250) "." r % 250 + 1 }
    function mac(a, b) { return sprintf("02:99:%02x:%02x:%02x:%02x", int(a / 256), a % 256, int(b / 256), b % 256) }
    function one_end(a, b, mbit, delay,    queue) { # the end in node a of the link to b
        print "link set to" b " address " mac(a, b) " mtu " mtu " up" > (dir "/node." a)
        print "neigh add " address(b) " dev to" b " lladdr " mac(b, a) " nud permanent" > (dir "/node." a)
        queue = "root"
        if (delay > 0) {
            print "qdisc add dev to" b " root handle 1: netem delay " delay "us limit 100000" > (dir "/queue." a)
            queue = "parent 1:1"
        }
        # limit: a queue that holds whatever TCP may have on the way, so nothing is dropped
        print "qdisc add dev to" b " " queue " tbf rate " mbit "mbit burst " burst " limit 16000000" > (dir "/queue." a)
        neighbour[a, degree[a]++] = b
    }
    { sub(/#.*/, "") }
    NF == 0 { next }
    !n {
        if ($1 != "nodes" || $2 !~ /^[0-9]+$/ || $2 < 2 || $2 > 1000 || NF != 2)
                bad("expected \"nodes N\", N from 2 to 1000")
        n = $2 + 0
        for (r = 0; r < n; r++) {
            print "link set lo up\nlink add node type veth peer name stub\nlink set stub up" > (dir "/node." r)
            print "addr add " address(r) "/32 dev node\nlink set node mtu " mtu " up" > (dir "/node." r)
        }
        next
    }
    $1 == "route" {
        if (NF != 4 || !(($2 + 0, $4 + 0) in seen)) bad("expected \"route FROM TO NEXT\", NEXT a neighbour of FROM")
        chosen[$2 + 0, $3 + 0] = $4 + 0
        next
    }
    {
        if (NF != 4 || $1 !~ /^[0-9]+$/ || $2 !~ /^[0-9]+$/) bad("expected \"A B MBIT MICROSECONDS\"")
        a = $1 + 0; b = $2 + 0
        mbit = all_mbit == "" ? $3 : all_mbit; delay = all_delay == "" ? $4 : all_delay
        if (a >= n || b >= n || a == b) bad("a link joins two different nodes of 0 to " n - 1)
        if (!number(mbit) || mbit <= 0 || !number(delay))
            bad("not a rate and a delay: " mbit " Mbit/s, " delay " microseconds")
        if ((a, b) in seen) bad("these two nodes have a link already")
        seen[a, b] = seen[b, a] = 1
        print "link add to" b " netns " prefix a " type veth peer name to" a " netns " prefix b > (dir "/links")
        one_end(a, b, mbit, delay)
        one_end(b, a, mbit, delay)
    }
    END {
        if (failed) exit 1
        if (!n) { print "net_torus.sh: the list is empty" | "cat >&2"; exit 1 }
        for (to = 0; to < n; to++) { # breadth first from every target: how far is each node?
            split("", far)
            far[to] = 0; todo[0] = to; first = 0; last = 1
            while (first < last) {
                at = todo[first++]
                for (i = 0; i < degree[at]; i++)
                    if (!((next_at = neighbour[at, i]) in far)) { far[next_at] = far[at] + 1; todo[last++] = next_at }
            }
            if (last < n) {
                print "net_torus.sh: node " to " cannot reach all others: links are missing" | "cat >&2"
                exit 1
            }
            for (from = 0; from < n; from++) {
                if (from == to) continue
                for (i = 0; far[neighbour[from, i]] != far[from] - 1;) i++
                via = (from, to) in chosen ? chosen[from, to] : neighbour[from, i]
                print "route add " address(to) "/32 via " address(via) " dev to" via " onlink src " address(from) \
                    > (dir "/node." from)
            }
        }
        print n
    }'
}

up() { # FILE|NAME [MBIT] [MICROSECONDS]
    local list=${1:-} n r value
    [[ $# -le 3 && -n $list ]] || stop 2 "up FILE|NAME [MBIT] [MICROSECONDS] (see net_torus.sh --help)"
    for value in "${2:-1}" "${3:-0}"; do
        [[ $value =~ ^[0-9]+(\.[0-9]+)?$ ]] || stop 2 "MBIT and MICROSECONDS are numbers, not \"$value\""
    done
    [[ $mtu =~ ^[0-9]+$ && $burst =~ ^[0-9]+$ ]] || stop 2 "NET_MTU and NET_BURST are whole numbers"
    ((mtu >= 576 && mtu <= 65000 && burst >= mtu + 14)) ||
        stop 2 "NET_MTU is 576 to 65000, NET_BURST at least 14 more, or nothing would pass: not $mtu and $burst"
    [ -z "$(spaces_up)" ] || stop 1 "a network is up already, or was left by an interrupted run: $0 down"
    scratch=$(mktemp -d)
    if [ "$list" = - ]; then cat >"$scratch/list"
    elif [ -f "$list" ]; then cat "$list" >"$scratch/list"
    elif [ -x "$project/build/network_links" ]; then
        "$project/build/network_links" "$list" >"$scratch/list" || stop 1 "build/network_links knows no $list"
    else stop 1 "$list is no file, and build/network_links, which knows names, is not built"; fi
    n=$(plan "$scratch" "${2:-}" "${3:-}" <"$scratch/list") || exit 1

    made=1 # from here on a failure or a signal has something to clear
    for ((r = 0; r < n; r++)); do
        add_space "$r" net.ipv4.ip_forward=1 net.ipv4.tcp_rmem="4096 1048576 1048576" \
            net.ipv4.tcp_wmem="4096 1048576 1048576"
    done
    ip -batch "$scratch/links" || stop 1 "could not make the cables (does this kernel have veth?)"
    for ((r = 0; r < n; r++)); do
        ip -n "$prefix$r" -batch "$scratch/node.$r" || stop 1 "could not set up node $r"
        tc -n "$prefix$r" -batch "$scratch/queue.$r" >"$scratch/tc" 2>&1 || {
            cat "$scratch/tc" >&2
            ! grep -q netem "$scratch/queue.$r" ||
                stop 1 "is netem missing in this kernel (module sch_netem)? With 0 as MICROSECONDS it is not needed"
            stop 1 "could not limit the links of node $r (does this kernel have tbf, module sch_tbf?)"
        }
    done
}

run() { # N COMMAND ...
    local n=${1:-} r hosts=""
    [[ $n =~ ^[1-9][0-9]*$ && $# -ge 2 ]] || stop 2 "run N COMMAND ...: N, the number of ranks, from 1 up"
    shift
    [ -n "$(spaces_up)" ] || stop 1 "there is no network: $0 up FILE|NAME first"
    [ "$n" -le "$(spaces_up | wc -l)" ] || stop 2 "$n ranks need $n nodes; this network has $(spaces_up | wc -l)"
    for ((r = 0; r < n; r++)); do hosts+=${hosts:+,}10.99.$((r / 250)).$((r % 250 + 1)):1; done
    # shellcheck disable=SC2034  # start_mpi's; messages travel only over btl tcp, on the node's own address
    local before=() flags=("${eager[@]}" --mca btl 'tcp,self' --mca btl_tcp_if_include node)
    start_mpi 10.99.0.1 "$hosts" "$n" "$@"
}
run_everywhere() { run "$(spaces_up | wc -l)" "$@"; }

enter() { # ADDRESS COMMAND ...
    local a b c d node
    IFS=. read -r a b c d <<<"$1"
    node=$((c * 250 + d - 1))
    [ "$a.$b" = 10.99 ] || stop 2 "$1 is no node"
    enter_space "$node" "node$node" "${@:2}"
}

bytes() { bytes_sent '^to[0-9]' | sed 's/ to/ /'; }
other_action() { no_action "$1"; }

main 'FILE|NAME [MBIT] [MICROSECONDS]' "$@"
