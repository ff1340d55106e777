#!/usr/bin/env bash
# dev/experiments/net_sites.sh   a few sites (datacenters) on this one Linux machine, joined by several slow network
# paths each of which may die: to train over all paths at once with Multipath TCP, and to see what a lost path does to a
# run.
#
#   net_sites.sh with 2 1 4 25 -- ./program ...   builds two sites of 1 rank each with 4 paths of 25 Mbit/s between
#                                                 them, runs the program on all ranks, takes the sites down,
#                                                 whatever happens
#   net_sites.sh with 2 1 4 25 --here ./many.sh   the same, but runs the command once, outside of the sites: a
#                                                 script that calls "net_sites.sh run" as often as it likes
#   net_sites.sh up SITES RANKS PATHS MBIT [US]   the three parts by themselves: up, run, down
#   net_sites.sh run COMMAND ...                  RANKS MPI ranks in each site; rank r is in site r / RANKS
#   net_sites.sh cut PATH [A B]                   while it runs: path PATH, from 0, carries nothing any more, between
#   net_sites.sh heal PATH [A B]                  all sites or between A and B; and carries again
#   net_sites.sh bytes                            what every path has carried so far: lines "FROM TO PATH BYTES"
#   net_sites.sh down                             also clears what an interrupted run has left
#
# SITES and PATHS are 2 to 8 and 1 to 8. MBIT is the rate of a path, or one for each: 40,20,10. US: its delay,
# microseconds.
#
# How it is built. A site is a network namespace: interfaces, addresses and routes of its own. Ranks inside one share
# memory. Any two sites are joined by PATHS veth pairs, cables with an end in each. What is sent into a cable goes
# through a token bucket (tc tbf) of MBIT/s, so both directions have the full rate; a delay, where one is asked for, is
# made by tc netem. Site s has the address 10.97.0.(s+1), to which path 0 leads. Each end of a path also has an address
# of its own, and what is sent from that address takes that path: a table of routes for each, chosen by "ip rule from".
#
# How one connection uses all paths. Multipath TCP (RFC 8684) is in Linux since 5.6. A program opens a socket with
# IPPROTO_MPTCP in place of TCP and then works as before; mptcpize, put before mpirun, does that to every program
# unchanged. The kernel opens the connection over path 0, and then a subflow, a TCP connection that belongs to it, from
# each of the other addresses that it knows ("ip mptcp endpoint add ADDRESS subflow"). Its scheduler gives every piece
# of data to the subflow that will be rid of it first, the receiver puts all in order by numbers, and what a dead path
# swallowed is sent again over the others. MPI knows nothing of all this: it sees one address a site.
#
# What to expect (two sites, a rank in each; dev/experiments/paths.py measures it). Two paths are 1.9 to 2 times as fast
# as one, four 3.5 to 3.9 times, on two cores; and unequal ones carry as much as each can. A path that is cut costs a
# stall of one or two seconds, and no bit of a result: tries by TCP, then by Multipath TCP, have to fail before others
# take over. A path that comes back is in use again after about a second. With one path, or with Open MPI's own
# striping, everything waits until the path is back, and if that takes more than four minutes, ends. To see a run's
# connections and subflows: ip netns exec threefold-sites-0 ss -tinM
#
# Settings, as variables: NET_PATHS_BY: mptcp (1 subflow a path), mpi (Open MPI's own: a connection a path, long
# messages cut into pieces; two sites only) or one (path 0 alone) [mptcp]. NET_CUT: drop (what is sent vanishes, no one
# knows) or down (the interfaces go down, the kernel knows) [drop]. NET_BUFFER: bytes that a connection may have on
# the way on one path; at least rate times twice the delay [262144]. NET_MTU (9000), NET_BURST (12000: bytes that a path
# lets through at once after a pause; at least NET_MTU + 14), MPIRUN (mpirun.openmpi or mpirun), NET_MPI_FLAGS (more
# options for mpirun). Needs root, Linux with CONFIG_MPTCP, iproute2 (ip, tc), util-linux (unshare), procps (sysctl),
# mptcpize (mptcpd), Open MPI.
set -euo pipefail
self=$(readlink -f "$0")
prefix=threefold-sites-
state=/run/${prefix}now # also what "up" has built
# shellcheck source=dev/experiments/namespaces.sh
. "$(dirname "$self")/namespaces.sh"
by=${NET_PATHS_BY:-mptcp}
cut_how=${NET_CUT:-drop}
buffer=${NET_BUFFER:-262144}

check_settings() {
    case $by in
    mptcp)
        [ -e /proc/sys/net/mptcp/enabled ] ||
            stop 1 "no Multipath TCP in this kernel (CONFIG_MPTCP, Linux 5.6 or later): NET_PATHS_BY=mpi or one"
        need mptcpize "mptcpd, or mptcpize on Ubuntu"
        ;;
    mpi | one) ;;
    *) stop 2 "NET_PATHS_BY is mptcp, mpi or one, not \"$by\"" ;;
    esac
    [[ $cut_how == drop || $cut_how == down ]] || stop 2 "NET_CUT is drop or down, not \"$cut_how\""
}

# Sets sites, ranks, paths and rates of what is up.
load() {
    [[ -n $(spaces_up) && -f $state/sites ]] || stop 1 "there are no sites: $0 up SITES RANKS PATHS MBIT first"
    read -r sites ranks paths delay rates_text <"$state/sites"
    read -ra rates <<<"$rates_text"
}

site_address() { echo "10.97.0.$(($1 + 1))"; }

# Network of path K between the sites A < B: 10.98.NUMBER.0/30, A's end is .1 and B's .2
network() { # A B K
    echo "10.98.$((($1 * sites - $1 * ($1 + 1) / 2 + $2 - $1 - 1) * 8 + $3))"
}

# Sets address, peer and table, of the end in site A of path K to site B, and dev, its name.
one_end() { # A B K
    dev=to$2p$3
    if [ "$1" -lt "$2" ]; then
        address=$(network "$1" "$2" "$3").1 peer=$(network "$1" "$2" "$3").2
    else address=$(network "$2" "$1" "$3").2 peer=$(network "$2" "$1" "$3").1; fi
    table=$((1000 + ($2 * 8 + $3)))
}

# The routes that go away when an interface goes down. What comes from the path's own address goes over this path or
# nowhere; from the site's address: over path 0.
end_routes() { # A B K
    one_end "$@"
    echo "route replace ${address%.*}.0/30 dev $dev src $address table $table"
    echo "route replace $(site_address "$2") via $peer dev $dev src $address table $table"
    [ "$3" != 0 ] || echo "route replace $(site_address "$2") via $peer dev $dev src $(site_address "$1")"
}

end_queue() { # A B K
    local queue=root
    one_end "$@"
    if [ "$delay" != 0 ]; then
        tc -n "$prefix$1" qdisc replace dev "$dev" root handle 1: netem delay "${delay}us" limit 100000 ||
            stop 1 "is netem missing in this kernel (module sch_netem)? Without US, a delay, it is not needed"
        queue="parent 1:1"
    fi
    # limit: a queue that holds whatever TCP may have on the way, so nothing is dropped
    # shellcheck disable=SC2086  # "parent 1:1" is two words
    tc -n "$prefix$1" qdisc replace dev "$dev" $queue tbf rate "${rates[$3]}mbit" burst "$burst" limit 16000000 ||
        stop 1 "could not limit a path (does this kernel have tbf, module sch_tbf?)"
}

up() { # SITES RANKS PATHS MBIT [MICROSECONDS]
    local a b k value
    [[ $# == 4 || $# == 5 ]] || stop 2 "up SITES RANKS PATHS MBIT [MICROSECONDS] (see net_sites.sh --help)"
    sites=$1 ranks=$2 paths=$3 delay=${5:-0}
    [[ $sites =~ ^[2-8]$ ]] || stop 2 "SITES is 2 to 8, not \"$sites\""
    [[ $ranks =~ ^[1-9][0-9]{0,3}$ ]] || stop 2 "RANKS, those of each site, is a whole number from 1 up, not \"$ranks\""
    [[ $paths =~ ^[1-8]$ ]] || stop 2 "PATHS is 1 to 8, not \"$paths\": that is the limit of a connection's subflows"
    IFS=, read -ra rates <<<"$4"
    [ ${#rates[@]} != 1 ] || for ((k = 1; k < paths; k++)); do rates+=("${rates[0]}"); done
    [ ${#rates[@]} = "$paths" ] || stop 2 "MBIT is one rate for all, or one for each of the $paths paths, not \"$4\""
    for value in "${rates[@]}"; do
        [[ $value =~ ^[0-9]+(\.[0-9]+)?$ && $value =~ [1-9] ]] ||
            stop 2 "MBIT is a rate, a number above 0, not \"$value\""
    done
    [[ $delay =~ ^[0-9]+(\.[0-9]+)?$ ]] || stop 2 "MICROSECONDS is a number, not \"$delay\""
    [[ $delay =~ [1-9] ]] || delay=0
    [[ $mtu =~ ^[0-9]+$ && $burst =~ ^[0-9]+$ && $buffer =~ ^[0-9]+$ ]] ||
        stop 2 "NET_MTU, NET_BURST and NET_BUFFER are whole numbers"
    ((mtu >= 576 && mtu <= 65000 && burst >= mtu + 14 && buffer >= 65536)) ||
        stop 2 "NET_MTU is 576 to 65000, NET_BURST at \
least 14 more, or nothing would pass, NET_BUFFER at least 65536: not $mtu, $burst and $buffer"
    [ -z "$(spaces_up)" ] || stop 1 "sites are up already, or were left by an interrupted run: $0 down"

    made=1 # from here on a failure or a signal has something to clear
    mkdir -p "$state"
    echo "$sites $ranks $paths $delay ${rates[*]}" >"$state/sites"
    for ((a = 0; a < sites; a++)); do
        # local_port_range: for those who connect; who listens has a lower port. Both ends of a connection try to add
        # subflows, but only the one that listens can be found, and by the rule "dport ... prohibit" below the others
        # give up at once. retries2: a connection whose only path is cut waits four minutes at least before it gives up.
        add_space "$a" net.ipv4.tcp_retries2=255 net.ipv4.ip_local_port_range="32768 60999" \
            net.ipv4.tcp_rmem="4096 1048576 $((8 * buffer))" net.ipv4.tcp_wmem="4096 $buffer $buffer"
        # rto_max: a dead path is tried again every second, so it is in use again a second after it was healed. Linux
        # before 6.15 does not have it, and tries again after 1, 2, 4, ... 120 s.
        ip netns exec "$prefix$a" sysctl -q -w net.ipv4.tcp_rto_max_ms=1000 2>/dev/null || true
        ip -n "$prefix$a" -batch - <<END || stop 1 "could not set up site $a"
link set lo up
link add node type veth peer name stub
link set stub up
addr add $(site_address $a)/32 dev node
link set node mtu $mtu up
END
        [ "$by" != mptcp ] || {
            ip netns exec "$prefix$a" sysctl -q -w net.mptcp.enabled=1 &&
                ip -n "$prefix$a" mptcp limits set subflow 8 add_addr_accepted 0
        } || stop 1 "could not set up Multipath TCP"
    done
    for ((a = 0; a < sites; a++)); do
        for ((b = a + 1; b < sites; b++)); do
            for ((k = 0; k < paths; k++)); do
                ip link add "to${b}p$k" netns "$prefix$a" type veth peer name "to${a}p$k" netns "$prefix$b" ||
                    stop 1 "could not make the cables (does this kernel have veth?)"
            done
        done
    done
    for ((a = 0; a < sites; a++)); do
        for ((k = 0; k < paths; k++)); do # paths outside: the kernel has endpoints to all sites in order of paths
            for ((b = 0; b < sites; b++)); do
                [ "$a" != "$b" ] || continue
                one_end "$a" "$b" "$k"
                ip -n "$prefix$a" -batch - <<END || stop 1 "could not set up a path of site $a"
link set $dev mtu $mtu up
addr add $address/30 dev $dev
rule add from $address lookup $table
rule add from $address to 10.97.0.0/16 ipproto tcp dport 32768-60999 prohibit
route add unreachable default metric 9 table $table
$(end_routes "$a" "$b" "$k")
END
                end_queue "$a" "$b" "$k"
                [ "$by" != mptcp ] || [ "$k" = 0 ] || endpoint "$a" "$b" "$k"
            done
        done
    done
}

# From now on connections also have a subflow from this end; those that are there already get one.
endpoint() { # A B K
    one_end "$@"
    ip -n "$prefix$1" mptcp endpoint add "$address" dev "$dev" subflow ||
        stop 1 "the kernel did not take $address as an endpoint"
}

run() { # COMMAND ...
    local a hosts="" before=() include=node flags=()
    [ $# -ge 1 ] || stop 2 "run COMMAND ..."
    load
    for ((a = 0; a < sites; a++)); do hosts+=${hosts:+,}$(site_address $a):$ranks; done
    case $by in
    mptcp) before=(mptcpize run) ;;
    mpi)
        [ "$sites" = 2 ] ||
            stop 2 "NET_PATHS_BY=mpi joins two sites: with more, Open MPI pairs interfaces that no path joins"
        include=10.98.0.0/16
        ;;
    esac
    # Its own striping wants the usual limit, because what is sent at once is not cut into pieces.
    [ "$by" = mpi ] || flags=("${eager[@]}")
    flags+=(--mca btl 'tcp,vader,self' --mca btl_tcp_if_include "$include" --mca oob_tcp_dynamic_ipv4_ports 20000-20001
        --mca btl_vader_backing_directory "$state/mpi")
    start_mpi "$(site_address 0)" "$hosts" $((sites * ranks)) "$@"
}
run_everywhere() { run "$@"; }

enter() { # ADDRESS COMMAND ...
    local site=$((${1#10.97.0.} - 1))
    enter_space "$site" "site$site" "${@:2}"
}

# Calls "FUNCTION A B K" for both ends of a path between every two sites, or the two that are said.
both_ends() { # FUNCTION PATH [A B]
    local a b
    [[ $# == 2 || $# == 4 ]] || stop 2 "cut or heal PATH [A B]: of a path, between all sites or between A and B"
    load
    [[ $2 =~ ^[0-9]$ && $2 -lt $paths ]] || stop 2 "PATH is 0 to $((paths - 1)), not \"$2\""
    if [ $# = 4 ]; then
        [[ $3 =~ ^[0-9]$ && $4 =~ ^[0-9]$ && $3 -lt $sites && $4 -lt $sites && $3 != "$4" ]] ||
            stop 2 "A and B are two sites of 0 to $((sites - 1)), not $3 and $4"
        "$1" "$3" "$4" "$2"
        "$1" "$4" "$3" "$2"
        return
    fi
    for ((a = 0; a < sites; a++)); do
        for ((b = 0; b < sites; b++)); do [ "$a" = "$b" ] || "$1" "$a" "$b" "$2"; done
    done
}

cut_end() { # A B K
    one_end "$@"
    if [ "$cut_how" = down ]; then ip -n "$prefix$1" link set "$dev" down
    else tc -n "$prefix$1" qdisc replace dev "$dev" root blackhole; fi # what is sent counts as sent, and is gone
}

# Has every connection that site A opened to B a subflow that leaves by path K?
has_all() { # A B K
    local first=""
    one_end "$@"
    [ "$3" != 0 ] || first=$(site_address "$1")
    ip netns exec "$prefix$1" ss -HtnM state established dst "$(site_address "$2")" |
        awk -v own="$address" -v first="$first" '
        { from = $4; sub(/[%:].*/, "", from); port = $5; sub(/.*:/, "", port) }
        port >= 32768 { next } # B opened it
        $1 == "mptcp" { connections++ }
        $1 == "tcp" && (from == own || from == first) { subflows++ }
        END { exit subflows < connections }'
}

heal_end() { # A B K
    one_end "$@"
    tc -n "$prefix$1" qdisc del dev "$dev" root 2>/dev/null || true
    end_queue "$@"
    ip -n "$prefix$1" link set "$dev" up
    end_routes "$@" | ip -n "$prefix$1" -batch -
    # A subflow that lives is used again by itself. For one that the kernel has given up a new one is opened when an
    # endpoint is added; for the first one of a connection, which came from the site's address, that is path 0's own
    # address.
    [ "$by" = mptcp ] && ! has_all "$@" || return 0
    local id
    id=$(ip -n "$prefix$1" mptcp endpoint | awk -v a="$address" '$1 == a { print $3 }')
    [ -z "$id" ] || ip -n "$prefix$1" mptcp endpoint delete id "$id"
    endpoint "$@"
}

bytes() { bytes_sent '^to[0-9]p[0-9]' | sed 's/ to\(.\)p/ \1 /' | sort -n; }
other_action() { # cut, heal
    case $1 in
    cut | heal) both_ends "$1_end" "${@:2}" ;;
    *) no_action "$1" ;;
    esac
}

main 'SITES RANKS PATHS MBIT [MICROSECONDS]' "$@"
