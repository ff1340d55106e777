# shellcheck shell=bash
# dev/experiments/namespaces.sh   what net_torus.sh and net_sites.sh share: network namespaces on one Linux machine,
# with Open MPI's ranks in them. Sourced by a script that sets
#
#   self      its own path
#   prefix    how the names of its namespaces begin: nothing else on the machine is touched
#   state     a folder that goes away with the namespaces; mpirun keeps its files there
#
# and defines the functions check_settings, up, run, run_everywhere (COMMAND, on all ranks), enter (see enter_space),
# bytes and other_action. Then it calls main with the arguments of up, for messages, and its own command line.
mtu=${NET_MTU:-9000}
burst=${NET_BURST:-12000}
scratch="" child="" made=0 keep=0

stop() { # STATUS MESSAGE
    echo "$(basename "$self"): $2" >&2
    exit "$1"
}

need() { # COMMAND PACKAGE
    command -v "$1" >/dev/null 2>&1 || stop 1 "there is no $1 here: install it (Debian, Ubuntu: apt-get install $2)"
}

check_machine() {
    [ "$(uname -s)" = Linux ] || stop 1 "network namespaces are Linux's: this is $(uname -s)"
    [ "$(id -u)" = 0 ] || stop 1 "making networks needs root: try sudo $0, or a container started with --privileged"
    need ip iproute2
    need tc iproute2
    need unshare util-linux
    need sysctl procps
}

# Sets $mpirun.
check_mpi() {
    mpirun=${MPIRUN:-mpirun.openmpi}
    [ -n "${MPIRUN:-}" ] || command -v "$mpirun" >/dev/null 2>&1 || mpirun=mpirun
    need "$mpirun" openmpi-bin
    case $("$mpirun" --version 2>&1) in
    *"(Open MPI) 4."* | *"(OpenRTE) 4."*) ;;
    *) stop 1 "$mpirun is not Open MPI 4, which this script can start: apt-get install openmpi-bin, or MPIRUN=..." ;;
    esac
    # mpirun splits the name of what it logs in with at spaces
    case $self in
    *[[:space:]]*) stop 1 "mpirun cannot start this script from a folder with a space in its name: $self" ;;
    esac
}

spaces_up() { ip netns list | awk -v p="$prefix" 'index($1, p) == 1 { print $1 }'; }

down() {
    local space pids left signal
    for signal in TERM KILL; do
        left=0
        for space in $(spaces_up); do
            pids=$(ip netns pids "$space" 2>/dev/null || true)
            [ -n "$pids" ] || continue
            left=1
            # shellcheck disable=SC2086  # a list of words
            kill -"$signal" $pids 2>/dev/null || true
        done
        [ "$left" = 1 ] || break
        sleep 0.3
    done
    for space in $(spaces_up); do ip netns del "$space" || true; done # the cables go with their ends
    rm -rf "$state"
}

# Makes a namespace, without IPv6, in which TCP does not wait. reno: every namespace may use it, and nothing is dropped
# that a better one would handle better. notsent_lowat: a short message must not stand behind a megabyte that waits in
# the socket already. rp_filter: an answer may leave by another path than the question came by.
add_space() { # NUMBER SETTING=VALUE ...
    local space=$prefix$1
    ip netns add "$space"
    ip netns exec "$space" sysctl -q -w net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0 \
        net.ipv4.tcp_congestion_control=reno net.ipv4.tcp_notsent_lowat=16384 \
        net.ipv4.tcp_slow_start_after_idle=0 net.ipv4.tcp_no_metrics_save=1 "${@:2}" || stop 1 "sysctl failed"
    [ ! -e /proc/sys/net/ipv6 ] || ip netns exec "$space" sysctl -q -w \
        net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1
}

# As "ssh HOST COMMAND ..." would: runs the command in namespace NUMBER, whose host name is HOST. mpirun passes shell
# text, start_mpi "exec" and words. Each has a host name of its own, or Open MPI would take all for one machine.
enter_space() { # NUMBER HOST COMMAND ...
    local space=$prefix$1 host=$2
    shift 2
    if [ "${1:-}" = exec ]; then shift; else set -- sh -c "$*"; fi
    # shellcheck disable=SC2016  # the inner shell expands them
    exec ip netns exec "$space" unshare --uts sh -c 'hostname "$1"; shift; exec "$@"' sh "$host" "$@"
}

# Flags of mpirun. Messages up to 4 MB are sent at once ("eager"). Longer ones ask first and wait for the answer, which
# would stand in the queue behind what flows the other way: with Open MPI's usual 64 KB, two neighbours that exchange a
# megabyte got half the rate.
eager=(--mca btl_tcp_eager_limit 4194304 --mca btl_tcp_rndv_eager_limit 4194304 --mca btl_tcp_max_send_size 4194304
    --mca btl_tcp_free_list_num 1 --mca btl_tcp_free_list_inc 2)

# Starts mpirun in the namespace with that address; it logs in to the others by this script in place of ssh. Reads two
# arrays of its caller: flags, further options of mpirun, and before, the words in front of it (mptcpize run).
start_mpi() { # ADDRESS HOSTS RANKS COMMAND ...
    mkdir -p "$state/mpi"
    # mpirun may say that it could not set the process group of a child that was faster than it: that is no fault.
    # shellcheck disable=SC2086,SC2154  # NET_MPI_FLAGS is a list of words; the arrays are the caller's
    guarded enter "$1" exec "${before[@]}" "$mpirun" --allow-run-as-root --bind-to none --host "$2" -np "$3" \
        --mca plm_rsh_agent "$self enter" --mca plm_rsh_no_tree_spawn 1 --mca oob_tcp_if_include node \
        --mca orte_tmpdir_base "$state/mpi" --mca pml ob1 --mca mpi_yield_when_idle 1 \
        --mca btl_base_warn_component_unused 0 --mca btl_tcp_flags send "${flags[@]}" ${NET_MPI_FLAGS:-} "${@:4}" \
        2> >(grep --line-buffered -v 'plm:rsh: Warning: setpgid' >&2)
}

# Runs a command so that a signal reaches this script at once (a shell waits for a command in the foreground to end
# first).
guarded() {
    local status=0
    "$@" <&0 &
    child=$!
    wait "$child" || status=$?
    child=""
    return "$status"
}

# What each interface has sent whose name matches the pattern: lines "FROM NAME BYTES".
bytes_sent() { # PATTERN
    local space
    for space in $(spaces_up | sort -V); do
        ip -n "$space" -o -s link | awk -v from="${space#"$prefix"}" -v pattern="$1" '{
            sub(/@.*/, "", $2)
            if ($2 !~ pattern) next
            for (i = 1; i < NF; i++) if ($i == "TX:") break
            while (i < NF && $i !~ /^[0-9]+$/) i++
            print from, $2, $i }'
    done
}

no_action() { stop 2 "no such action: $1 (see $(basename "$self") --help)"; }

clean_up() {
    local status=$?
    trap '' INT TERM HUP
    if [ -n "$child" ]; then
        kill -TERM "$child" 2>/dev/null || true
        for _ in {1..50}; do
            kill -0 "$child" 2>/dev/null || break
            sleep 0.1
        done
        kill -KILL "$child" 2>/dev/null || true
    fi
    [ "$made" = 0 ] || [ "$keep" = 1 ] || down
    [ -z "$scratch" ] || rm -rf "$scratch"
    exit "$status"
}

main() { # ARGUMENTS_OF_UP [ACTION ...]
    local for_up=$1 action=${2:-} arguments=() how
    shift $(($# < 2 ? 1 : 2))
    case $action in
    '' | -h | --help | help)
        sed -n '1d;/^#/!q;s/^# \{0,1\}//p' "$self"
        [ -n "$action" ] || exit 2
        exit 0
        ;;
    enter) enter "$@" ;;
    esac
    check_machine
    check_settings
    trap clean_up EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    trap 'exit 129' HUP
    case $action in
    up)
        up "$@"
        keep=1
        ;;
    down) down ;;
    bytes) bytes ;;
    run)
        check_mpi
        run "$@"
        ;;
    with)
        while [ $# -gt 0 ] && [ "$1" != -- ] && [ "$1" != --here ]; do arguments+=("$1"); shift; done
        [ $# -ge 2 ] || stop 2 "with $for_up -- COMMAND ... (see $(basename "$self") --help)"
        how=$1
        shift
        check_mpi
        up "${arguments[@]}"
        if [ "$how" = --here ]; then guarded "$@"; else run_everywhere "$@"; fi
        ;;
    *) other_action "$action" "$@" ;;
    esac
}
